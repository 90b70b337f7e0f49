"""What `outbox-tasks status` shows to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox_tasks.cli.shared.output import cell
from outbox_tasks.database.activity import LATE
from outbox_tasks.operating.status import STATES, feed_state, keys_held_up
from outbox_tasks.text import many, number, one_line, span

STYLES = {
    "closed": "green", "refuses": "red", "open": "red", "trying": "yellow", "paused": "yellow", "unknown": "red",
}  # fmt: skip
"""The states of destinations, as `DestinationStatus.state` names them."""

TROUBLES = (
    (("refuses",), "✗", "refuses everything", "bold red"), (("open", "trying"), "!", "circuit open", "yellow"),
)  # fmt: skip
"""States of destinations that the headline names: the sign, the words and the style."""

COUNTS = (
    ("leased", "leased", ""), ("handed", "handed over", ""), ("runs", "running", ""), ("retry", "retrying", "yellow"),
    ("later", "scheduled", ""), ("dead", "dead", "red"),
)  # fmt: skip
"""Columns of the destinations: the title, the state of the messages and the style."""

SUPERVISED = ("handed over", "running")
"""States that are shown only if there are such messages."""

FEEDS = 20
"""Feeds that are shown."""

NARROW = 100
"""Columns of a terminal below which queues are named by their last word, and a state is below its destination."""

Found = Mapping[str, Any]


def status_shown(found: Found, width: int) -> RenderableType:
    """What `cli.status.snapshot` found: the worst first."""
    narrow = width < NARROW
    parts: list[RenderableType] = [_headline(found), Text(), _destinations(found, narrow), *_reasons(found), Text()]
    if found["feeds"]:
        parts += [_feeds(found), Text()]
    if found["workers"]:
        parts += [_workers(found, short=narrow), Text()]
    return Group(*parts, _footer(found))


def _headline(found: Found) -> RenderableType:
    lines = [cell(f"✗ {finding['text']}", "bold red") for finding in found["findings"]]
    for state, sign, what, style in TROUBLES:
        if names := [one["name"] for one in found["destinations"] if one["state"] in state]:
            lines.append(cell(f"{sign} {what}: {', '.join(names)}", style))
    lines = lines or [Text("✓ in order", style="bold green")]
    if found["dead_letters"]:
        lines.append(cell(f"! {found['dead_letters']}", "yellow"))
    return Group(*lines)


def _destinations(found: Found, narrow: bool) -> Table:
    supervised = any(one["states"][state] for one in found["destinations"] for state in SUPERVISED)
    columns = [column for column in COUNTS if supervised or column[1] not in SUPERVISED]
    titles = ("due", *(title for title, *_ in columns), "oldest", "sent\n/min", "failed\n/min")
    table = _plain_table("destination", *(() if narrow else ("state",)), right=titles)
    for one in found["destinations"]:
        rough = one["estimated"]
        waits_long = one["oldest"] is not None and one["oldest"] > found["stale_after"]
        table.add_row(
            *((_below(one),) if narrow else (cell(one["name"]), _state(one))),
            _count(one["due"], estimated="pending" in rough),
            *(_count(one["states"][state], estimated=state in rough, style=style) for _, state, style in columns),
            Text("-" if one["oldest"] is None else span(one["oldest"]), style="red" if waits_long else ""),
            _count(one["sent"]),
            _count(one["failed"], style="yellow"),
        )
    if found["more_destinations"]:
        table.caption = "and perhaps more that are not configured"
    return table


def _state(one: Found) -> Text:
    return Text(STATES[one["state"]], style=STYLES[one["state"]])


def _below(one: Found) -> Text:
    """The name, and below it the state, unless it is in service."""
    name = cell(one["name"])
    return name if one["state"] == "closed" else name.append("\n  ").append_text(_state(one))


def _count(count: float, *, estimated: bool = False, style: str = "") -> Text:
    return Text(number(count, estimated=estimated), style=style if count else "dim")


def _reasons(found: Found) -> Iterator[Text]:
    """Why destinations are not in order: below the table, where there is room."""
    for one in found["destinations"]:
        name = one["name"]
        if one["why"]:
            yield cell(one["why"], STYLES[one["state"]])
        if one["held_up"]:
            yield cell(f"{keys_held_up(name, one['held_up'])}; see `keys`", "yellow")


def _feeds(found: Found) -> Table:
    """The first feeds: those in trouble are in front."""
    table = _plain_table("feed", "state", right=("copied", "waiting", "oldest", "read"))
    for one in found["feeds"][:FEEDS]:
        late = one["age"] > found["stale_after"]
        state = feed_state(one["failing"], one["age"], found["stale_after"])
        table.add_row(
            cell(one["name"]),
            Text(state, style="red" if late or one["failing"] is not None else "green"),
            _count(one["copied"]),
            _count(one["waiting"], style="red" if late else ""),
            Text(span(one["age"]) if one["waiting"] else "-", style="red" if late else ""),
            Text("never" if one["looked"] is None else f"{span(one['looked'])} ago"),
        )
    if len(found["feeds"]) > FEEDS:
        table.caption = f"and {len(found['feeds']) - FEEDS:,} more: outbox-tasks feed status"
    return table


def _workers(found: Found, *, short: bool) -> Table:
    table = _plain_table("worker", "queues", "pool", "seen")
    for one in found["workers"]:
        queues = [queue.rpartition(".")[2] if short else queue for queue in one.get("queues", ())]
        pool = f"{one.get('pool')} × {one.get('concurrency')}"
        lost = one["age"] > LATE
        seen = f"lost, {span(one['age'])} ago" if lost else f"{span(one['age'])} ago"
        cells = (one["name"], ", ".join(queues), pool, seen)
        table.add_row(*(cell(text) for text in cells), style="red" if lost else "")
    return table


def _footer(found: Found) -> Text:
    ran = [f"{kind} {_ago(found[kind])}" for kind in ("claim", "beat", "maintain")]
    claim = found["claim"]
    if claim and "seconds" in claim:  # the command drain does not report it
        held_back = ", held back" if claim["held_back"] else ""
        drains = f" and {many(claim['drains'], 'drain')}" if claim["drains"] else ""
        ran[0] += f" ({claim['claimed']:,}{drains} in {claim['seconds']:.2g} s{held_back})"
    queues, unknown = found["queues"] or {}, one_line(found["queues_unknown"] or "")
    queues = {name.rpartition(".")[2]: count for name, count in queues.items()}
    queued = " · ".join(f"{name} {number(count)}" for name, count in queues.items()) or unknown
    archived = number(found["archived"]["count"], estimated=found["archived"]["estimated"])
    lines = [
        "last: " + " · ".join(ran),
        f"queued: {queued}; drains at work: {found['drains']}; processes that send: {found['processes']}",
        f"archived: {archived}; outbox-tasks {found['version']}, tables of version {found['tables']}",
    ]
    text = Text("\n".join(lines), style="dim")
    text.highlight_words(["held back", "never"], "not dim bold yellow")
    return text


def _ago(sign: Found | None) -> str:
    return f"{span(sign['age'])} ago" if sign else "never"


def _plain_table(*titles: str, right: Iterable[str] = ()) -> Table:
    table = Table(*titles, box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.columns[0].overflow = "fold"
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table
