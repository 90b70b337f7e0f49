"""Templates: how values are shown in HTML. What others have written is always text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_tasks import text
from outbox_tasks.errors import WebNotInstalled
from outbox_tasks.text import many, number, printable, span

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = Path(__file__).parent

KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".LICENSE": "text/plain"}


def rendered(template: str, names: Mapping[str, Any]) -> bytes:
    """A template with these names. Raises `WebNotInstalled`."""
    return environment().get_template(template).render(names).encode("utf-8", "replace")


@cache
def environment() -> Environment:
    """All templates. Raises `WebNotInstalled`."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise WebNotInstalled(missing=error) from None
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        ago=ago,
        span=_span,
        number=_number,
        many=many,
        when=when,
        exactly=exactly,
        printable=printable,
        cut=cut,
    )
    return made


@cache
def static() -> dict[str, tuple[str, bytes]]:
    """The files that the browser loads: content type and content, by name."""
    return {
        path.name: (f"{KINDS[path.suffix]}; charset=utf-8", path.read_bytes())
        for path in (HERE / "static").iterdir()
        if path.suffix in KINDS
    }


@cache
def version() -> str:
    """Changes when one of these files changes, so that browsers may keep them."""
    return hashlib.sha256(b"".join(body for _, body in sorted(static().values()))).hexdigest()[:10]


def _shown(value: Any) -> Any:
    """Texts without characters that would turn the line round or hide something. None is nothing."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def exactly(value: str) -> Markup:
    """A text as it is, for the field of a form: the browser sends it back unchanged."""
    from markupsafe import escape

    return escape(value)


def cut(whole: str | None, longest: int) -> str:
    """The beginning of a text that may be very long."""
    some = printable((whole or "")[: longest + 1])
    return some if len(some) <= longest else f"{some[:longest]}…"


def ago(moment: datetime | None) -> Markup | str:
    """How long ago something was; with "in", how far ahead it is."""
    if moment is None:
        return "never"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return _time(moment, f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}")


def when(moment: datetime | None) -> Markup | str:
    """Date and time."""
    return "never" if moment is None else _time(moment, text.moment(moment))


def _time(moment: datetime, shown: str) -> Markup:
    """The browser adds the local time to the title."""
    from markupsafe import Markup

    made = Markup('<time datetime="{}" title="{}">{}</time>')
    return made.format(moment.astimezone(UTC).isoformat(), text.moment(moment), shown)


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(seconds)


def _number(count: float, estimated: bool = False) -> str:
    return number(count, estimated=estimated)
