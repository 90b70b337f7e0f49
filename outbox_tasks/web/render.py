"""Templates, and how values are shown in HTML. What others have written is always text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from outbox_tasks import __version__, text
from outbox_tasks.text import many, number, printable, span
from outbox_tasks.web.access import Role

HERE = Path(__file__).parent
STATIC = HERE / "static"

COMMAND = re.compile(r"(.*[:;] )?((?:outbox-tasks|celery|pip|manage\.py) .*[^.]|-- .*|[A-Z]{4,} .*)")
"""A line of a remedy that is for a shell or a database, perhaps behind words for people."""


def show(
    request: Request,
    template: str,
    names: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A page. `layout.html` needs these names, also for trouble without a visit."""
    usual = {
        "visit": None,
        "Role": Role,
        "titles": request.app.state.titles,
        "here": path_of(request),
        "url": lambda path, **query: url(request, path, **query),
        "static": lambda name: url(request, f"/static/{name}", v=version()),
        "again": here(request) if request.method == "GET" else None,
        "version": __version__,
    }
    return templates().TemplateResponse(request, template, {**usual, **names}, status, headers)


def go(request: Request, path: str, **query: object) -> Response:
    """Send the browser to another page, after a form."""
    return Response(None, 303, {"Location": url(request, path, **query)})


def url(request: Request, path: str, **query: object) -> str:
    """The address of a page. Values that are None are left out; a list gives the name several times. `path` may hold
    any text: it is quoted."""
    values = {name: value for name, value in query.items() if value is not None}
    return _address(request, path, urlencode(values, doseq=True))


def here(request: Request) -> str:
    return _address(request, path_of(request), urlencode(request.query_params.multi_items()))


def path_of(request: Request) -> str:
    """The path below the place where the page is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope["root_path"])


def _address(request: Request, path: str, query: str) -> str:
    # A browser would take "/.." in a name for the folder above. A coded slash does not mean that to it.
    quoted = re.sub(r"/(?=\.{1,2}(/|$))", "%2F", quote(request.scope["root_path"] + path))
    return f"{quoted}?{query}" if query else quoted


@cache
def templates() -> Jinja2Templates:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "ago": ago, "when": when, "span": _span, "number": number, "many": many, "printable": printable, "cut": cut,
        "exactly": escape,  # for a field of a form: the browser sends the text back unchanged
        "steps": steps,
    }  # fmt: skip
    return Jinja2Templates(env=environment)


@cache
def version() -> str:
    """Changes when one of the static files changes, so that browsers may keep them."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))).hexdigest()[:10]


def _finalize(value: Any) -> Any:
    """Texts without characters that turn the line round or hide something. None becomes nothing."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def steps(remedy: str) -> list[tuple[bool, str]]:
    """The parts of a remedy: whether it is a command, and the text. Commands that follow one another are one part."""
    parts: list[tuple[bool, str]] = []
    for line in remedy.splitlines():
        match = COMMAND.fullmatch(line)
        words, command = match.groups() if match else (line, None)
        if words:
            parts.append((False, words.strip()))
        if command:
            parts.append((True, command))
    return [(kind, "\n".join(text for _, text in same)) for kind, same in groupby(parts, lambda part: part[0])]


def cut(whole: str | None, longest: int) -> str:
    """The beginning of a text that may be very long."""
    start = printable((whole or "")[: longest + 1])
    return start if len(start) <= longest else f"{start[:longest]}…"


def ago(moment: datetime) -> Markup:
    """How long ago something was; for the future, "in" how long it will be."""
    return _time(moment, text.ago(moment))


def when(moment: datetime | None) -> Markup | str:
    return "never" if moment is None else _time(moment, text.moment(moment))


def _time(moment: datetime, shown: str) -> Markup:
    template = Markup('<time datetime="{}" title="{}">{}</time>')
    return template.format(moment.astimezone(UTC).isoformat(), text.moment(moment), shown)


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(seconds)
