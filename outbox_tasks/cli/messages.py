"""Messages and error groups as people see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox_tasks.cli.texts import ago, cell, clock, many, shown_payload
from outbox_tasks.text import one_line, printable

if TYPE_CHECKING:
    from outbox_tasks.operating.messages.acts import Kind

STYLES = {
    "pending": "", "scheduled": "cyan", "leased": "blue", "retrying": "yellow", "dead": "red", "sent": "green",
    "discarded": "dim",
}  # fmt: skip

WIDE = 110
"""Characters from which on a message fits on one line."""

KEPT = 30
"""Entries of a history that are kept: the first one, and the last ones."""


def table(width: int, *columns: str, right: Iterable[str] = ()) -> Table:
    """One that fits the terminal: only the last column may be cut."""
    made = Table(box=None, pad_edge=False, header_style="bold", width=width)
    for name in columns:
        made.add_column(
            name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left",
            ratio=1 if name == columns[-1] else None,
        )  # fmt: skip
    return made


def listed(messages: list[dict[str, Any]], width: int) -> RenderableType:
    """A list of messages, each with its whole id: on one line or, on a narrow terminal, on two where there is more."""
    return _wide(messages, width) if width >= WIDE else _narrow(messages)


def _wide(messages: list[dict[str, Any]], width: int) -> Table:
    shown = table(width, "id", "state", "age", "destination", "type", "key", "error")
    for column, most in zip(shown.columns[3:6], (14, 22, 18), strict=True):
        column.max_width = most
    for one in messages:
        cells = (cell(one[name] or "") for name in ("destination", "event_type", "key"))
        state = Text(one["state"], STYLES[one["state"]])
        shown.add_row(str(one["id"]), state, ago(one["created_at"]), *cells, Text(error_of(one), "dim"))
    return shown


def _narrow(messages: list[dict[str, Any]]) -> RenderableType:
    lines = [Text(f"{'id':<36}  {'state':<9}  {'age':<4} message", "bold")]
    for one in messages:
        line = Text(f"{one['id']}  ").append(f"{one['state']:<9}", STYLES[one["state"]])
        line.append(f"  {ago(one['created_at']):<4} {one_line(one['destination'])}  {one_line(one['event_type'])}")
        key = f"key {one_line(one['key'])}" if one["key"] is not None else ""
        more = "  ".join(filter(None, (error_of(one), key)))
        lines += [line, Text(f"  {more}", "dim")] if more else [line]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def error_of(one: dict[str, Any]) -> str:
    """The last error in one line."""
    return one_line(": ".join(filter(None, (one["last_error_code"], one["last_error"]))))


def groups(found: list[dict[str, Any]], counted: int, width: int) -> Table:
    """Error groups: of each its name, how many, since when, and an example."""
    shown = table(width, "group", "dead", "first", "last", "what", right=("dead",))
    for one in found:
        what = Text(f"{one_line(one['destination'])}  {one_line(one['event_type'])}", "bold")
        what.append(f"\n{error_of(one)}", "red").append(f"\n{one['id']}", "dim")
        count = f"{one['count']:,}" + ("+" if one["count"] >= counted else "")
        shown.add_row(cell(one["group"]), count, ago(one["first_at"]), ago(one["dead_at"]), what)
    return shown


def kinds(found: Sequence[Kind], width: int) -> Table:
    """How many of each destination, event type, state and error, with an example of each."""
    shown = table(width, "messages", "state", "what", right=("messages",))
    for kind in found:
        what = Text(f"{one_line(kind.destination)}  {one_line(kind.event_type)}")
        if kind.code is not None:
            what.append(f"  {one_line(kind.code)}", "red")
        what.append(f"\n{kind.example}", "dim")
        shown.add_row(f"{kind.count:,}", Text(kind.state, STYLES[kind.state]), what)
    return shown


def message(one: dict[str, Any]) -> RenderableType:
    """All that is known of one message."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(one):
        facts.add_row(name, value if isinstance(value, Text) else Text(printable(str(value))))
    parts: list[RenderableType] = [Text(f"Message {one['id']}", "bold"), facts]
    timeline = Table.grid(padding=(0, 2))
    timeline.add_column(style="dim", no_wrap=True)
    timeline.add_column(overflow="fold")
    for moment, what in _timeline(one):
        timeline.add_row(cell(moment), Text(printable(what)))
    parts += [Text("\nHistory", "bold"), timeline]
    if len(one["history"] or ()) >= KEPT:
        parts.append(Text(f"Of a long history the first entry and the last {KEPT - 1} are kept.", "dim"))
    size = f"{len(one['payload']):,} bytes"
    parts += [Text(f"\nPayload, {printable(one['content_type'])}, {size}", "bold"), Text(shown_payload(one["payload"]))]
    return Group(*parts)


def _facts(one: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "state", Text(one["state"], STYLES[one["state"]])
    yield "event type", one["event_type"]
    yield "destination", one["destination"]
    if one["aggregate_type"] or one["aggregate_id"]:
        yield "aggregate", " ".join(filter(None, (one["aggregate_type"], one["aggregate_id"])))
    for other in one["elsewhere"]:
        yield "also at", f"{other['destination']}: {other['id']} ({other['state']})"
    if one["key"] is not None:
        yield "key", one["key"]
    if (ahead := one["ahead"]) is not None:
        first = f"the first is {ahead['id']} ({ahead['state']})"
        yield "held up by", Text(f"{ahead['count']:,} of its key before it; {first}", "yellow")
    if one["priority"]:
        yield "priority", {1: "high", -1: "low"}[one["priority"]]
    for name in ("created_at", "deliver_at", "dead_at", "finished_at"):
        if one[name] is not None:
            yield name.replace("_", " "), _moment(one[name])
    if one["state"] in ("scheduled", "retrying", "leased") and one["locked_until"] is not None:
        yield {"leased": "leased until"}.get(one["state"], "due"), _moment(one["locked_until"])
    if one["lease"] is not None:
        yield "lease", f"{one['lease']}, {'begun' if one['begun'] else 'not begun'}, held by {one['locked_by']}"
    elif one["locked_by"]:
        yield "last held by", one["locked_by"]
    yield "attempts", one["attempts"]
    if error_of(one):
        yield "last error", Text(error_of(one), "red")
    if one["group"]:
        yield "error group", one["group"]
    for name, value in (one["headers"] or {}).items() if isinstance(one["headers"], dict) else ():
        yield "header", f"{name}: {value}"


def _moment(moment: Any) -> str:
    past = ago(moment)
    return f"{clock(moment)} ({past if past.startswith('in ') else past + ' ago'})"


def _timeline(one: dict[str, Any]) -> list[tuple[str, str]]:
    """What happened, in order: also edits and other acts that only the audit knows."""
    told = [(one["created_at"].isoformat(), "written")]
    told += [(entry.get("at", ""), entry_text(entry)) for entry in one["history"] or ()]
    if one["state"] == "sent":
        told.append((one["finished_at"].isoformat(), f"sent by {one['locked_by'] or 'nobody known'}"))
    elif one["finished_at"] and not any(entry.get("what") == "discarded" for entry in one["history"] or ()):
        told.append((one["finished_at"].isoformat(), f"discarded: {error_of(one)}"))
    return [(_when(moment), what) for moment, what in told]


def _when(moment: str) -> str:
    from datetime import datetime

    try:
        return clock(datetime.fromisoformat(moment))
    except ValueError:
        return moment


def entry_text(entry: dict[str, Any]) -> str:
    """An entry of a history in words."""
    text = str(entry.get("what", "?"))
    if entry.get("attempt"):
        text = (
            f"attempt {entry['attempt']} {text}"
            if text in ("failed", "outage")
            else f"{text} after {_attempts(entry['attempt'])}"
        )
    if "by" in entry:
        text += f" by {entry['by']}"
    said = [str(entry[name]) for name in ("code", "error", "why") if entry.get(name)]
    return ": ".join([text, *said])


def _attempts(number: Any) -> str:
    """Of what is in the row's history, which anybody may have written."""
    return many(number, "attempt") if isinstance(number, int) else f"{number} attempts"


def acts(found: list[dict[str, Any]], width: int) -> Table:
    """The audit: who did what, when, upon what and why."""
    shown = table(width, "no.", "when", "who", "what", right=("no.",))
    for one in found:
        count = "" if one["target"] and one["count"] == 1 else f" {many(one['count'], 'message')}"
        if one["action"] in ("pause", "resume"):
            count = ""
        line = cell(f"{one['action']}{count}", "bold").append(f" {one_line(one['target'] or '')}", "")
        facts = ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in one["facts"].items())
        for more, style in ((one["why"], ""), (facts, "dim")):
            if more:
                line.append(f"\n{one_line(more)}", style)
        shown.add_row(str(one["seq"]), clock(one["at"]), cell(one["who"]), line)
    return shown


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
