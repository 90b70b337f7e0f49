"""How commands write to people and to programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from outbox_tasks.operating.messages.life import error_of
from outbox_tasks.text import ago, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

JSON = f"{__name__}.json"
"""Where the context keeps whether --json was given."""

STATE_STYLES = {
    "pending": "", "scheduled": "cyan", "leased": "blue", "handed over": "blue", "running": "blue",
    "retrying": "yellow", "dead": "red", "sent": "green", "discarded": "dim",
}  # fmt: skip


def _remember(context: click.Context, _: click.Parameter, value: bool) -> bool:
    context.meta[JSON] = value
    return value


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_remember, help="Print one JSON object."
)
"""--json. `answer` and `wants_json` know whether it was given."""


def wants_json() -> bool:
    """Whether a program asks, so that no person can be asked."""
    return bool(click.get_current_context().meta.get(JSON))


def answer(facts: Any, shown: str | RenderableType | None = None) -> None:
    """The answer of a command: `facts` for programs, or `shown` for people."""
    if wants_json():
        echo_json(facts)
    elif isinstance(shown, str):
        say(shown)
    elif shown is not None:
        console().print(shown)


def say(text: str, *, err: bool = False) -> None:
    """For people: a line, without anything that a terminal would obey."""
    click.echo(printable(text), err=err)


def remark(*texts: str) -> None:
    """For people, on stderr, beside an answer. Programs get none."""
    for text in () if wants_json() else texts:
        say(text, err=True)


def echo_json(value: Any) -> None:
    """For programs: one JSON object on a line; times as ISO 8601, ids as texts."""
    click.echo(json.dumps(value, default=_plain))


def echo_raw(content: str | bytes) -> None:
    """For programs: exactly this. A terminal gets it without anything that it would obey."""
    if sys.stdout.isatty():
        content = printable(content if isinstance(content, str) else content.decode(errors="backslashreplace"))
    click.echo(content, nl=False)


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def console(*, stderr: bool = False) -> Console:
    """For people: what they asked for on stdout, progress on stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def indented(line: Text, columns: int) -> Padding:
    """A line of text below a heading."""
    from rich.padding import Padding

    return Padding(line, (0, 0, 0, columns), expand=False)


def listed(message: dict[str, Any]) -> Text:
    """A message on a line that is cut, and on a second line its error and key, if it has any."""
    from rich.text import Text

    line = Text(f"{message['id']}  ", no_wrap=True, overflow="ellipsis")
    line.append(f"{message['state']:<9}", STATE_STYLES[message["state"]])
    names = f"{one_line(message['destination'])}  {one_line(message['event_type'])}"
    line.append(f"  {ago(message['created_at']).removesuffix(' ago'):<6} {names}")
    key = f"key {one_line(message['key'])}" if message["key"] is not None else ""
    if more := "  ".join(filter(None, (error_of(message), key))):
        line.append(f"\n  {more}", "dim")
    return line


def cell(text: object, style: str = "") -> Text:
    """Text by others, in one line, for rich: neither markup nor anything that a terminal would obey."""
    from rich.text import Text

    return Text(one_line(str(text)), style)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table that fits the terminal: only the last column may be cut."""
    from rich.table import Table

    rows = Table(box=None, pad_edge=False, header_style="bold", width=console().width)
    for name in columns:
        rows.add_column(
            name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left",
            ratio=1 if name == columns[-1] else None,
        )  # fmt: skip
    return rows
