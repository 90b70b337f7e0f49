"""The result of the demo: what arrived at the destination, compared with what the application committed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

import redis
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import ColumnElement, Engine, Uuid, column, func, select, table
from sqlalchemy import Text as SqlText
from sqlalchemy.sql.selectable import TableClause

from outbox_tasks.local.demo_app import Shop
from outbox_tasks.local.demo_setup import DemoSetup

PAGE = 5000

Entries = list[tuple[str, dict[str, str]]]
"""Of a stream, as Redis returns them decoded."""


@dataclass(frozen=True)
class Figures:
    """What `--json` prints."""

    committed: int
    rolled_back: int
    delivered: int
    """Distinct messages found at the destination."""
    duplicates: int
    retried: int
    dead: int
    lost: int
    """Committed, and neither at the destination nor dead nor still on its way."""
    ghosts: int
    """Messages found at the destination that were not committed."""
    seconds: float
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    unfinished: int
    """On their way when nothing had moved for long."""


@dataclass(frozen=True)
class KilledWorker:
    """The publish worker that was killed."""

    name: str
    held: int
    """Messages whose send it had begun and not settled."""


@dataclass(frozen=True)
class Report:
    """The figures, and what is shown besides."""

    figures: Figures
    killed: KilledWorker | None
    failures: int
    unexplained: int
    """Messages that arrived more than once without a cause on their row."""
    undeliverable_is_dead: bool

    @property
    def problems(self) -> list[str]:
        """Broken promises, in plain words."""
        f = self.figures
        dead = "The message that can't be delivered is not the one dead letter there is"
        found = [
            (f.lost, f"Committed, yet missing at the destination: {f.lost:,}"),
            (f.ghosts, f"Delivered, though nobody had committed them: {f.ghosts:,}"),
            (not self.undeliverable_is_dead and not self.figures.unfinished, dead),
            (self.unexplained, f"Arrived more than once, without a recorded cause: {self.unexplained:,}"),
        ]
        return [problem for wrong, problem in found if wrong]

    @property
    def not_finished(self) -> list[str]:
        """What the demo could not show. This says nothing against the relay."""
        count = f"{self.figures.unfinished:,}"
        busy = f"Messages that were still on their way when nothing had moved for long: {count}. Is the machine busy?"
        found = [
            (self.figures.unfinished, busy),
            (self.killed is None, "No publish worker was met while it was sending, to be killed"),
        ]
        return [text for missing, text in found if missing]

    def json(self) -> dict[str, int | float | None]:
        """The figures by name."""
        return asdict(self.figures)

    def show(self, console: Console) -> None:
        """A table in plain words, and the verdict."""
        grid = Table(title="What happened", title_justify="left", show_header=False, box=None, pad_edge=False)
        grid.add_column(overflow="fold")
        grid.add_column(justify="right", no_wrap=True)
        for label, value in self._lines():
            grid.add_row(label, value)
        console.print()
        console.print(grid)
        console.print()
        for problem in self.problems:
            console.print(Text(f"✗ {problem}", style="bold red"))
        for text in self.not_finished:
            console.print(Text(f"! Not finished: {text}", style="yellow"))
        if not self.problems:
            verdict = "✓ Nothing was lost, and nothing that was rolled back was delivered."
            console.print(Text(verdict, style="bold green"))

    def _lines(self) -> Iterator[tuple[str, str]]:
        f = self.figures
        yield "Orders committed, each with its message", f"{f.committed:,}"
        yield "Orders rolled back after their message was written", f"{f.rolled_back:,}"
        yield "Requests that the destination failed", f"{self.failures:,}"
        if self.killed is not None:
            yield f"Messages that {self.killed.name} was sending at its kill -9", f"{self.killed.held:,}"
        yield "Messages that met trouble on their way, and were tried again", f"{f.retried:,}"
        yield "Messages found at the destination", f"{f.delivered:,}"
        cause = "" if self.unexplained else ", each with a recorded cause"
        yield f"Repetitions there, of the same id{cause}", f"{f.duplicates:,}"
        yield "Can never be delivered: kept as dead letters", f"{f.dead:,}"
        yield "Lost", f"{f.lost:,}"
        yield "Rolled back, yet delivered", f"{f.ghosts:,}"
        yield "From commit to arrival: half of them within", _duration(f.p50_ms)
        yield "                        99 of 100 within", _duration(f.p99_ms)
        yield f"Messages a second, over {f.seconds:.1f} s with failures and kill", f"{f.per_second:,.0f}"


class Progress(NamedTuple):
    """How far the relay is: for the progress bar, and to know when to stop."""

    unsettled: int
    delivered: int
    dead: int
    retried: int


class RelayCounts:
    """What the relay knows of its messages, from the view `outbox_all`."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine = engine
        columns = column("id", Uuid), column("state", SqlText)
        self._all: TableClause = table("outbox_all", *columns, column("last_error_code", SqlText), schema=schema)

    def progress(self) -> Progress:
        """The current counts."""
        a = self._all.c
        counts = [
            func.count().filter(a.state.not_in(["sent", "dead"])),
            func.count().filter(a.state == "sent"),
            func.count().filter(a.state == "dead"),
            func.count().filter((a.state != "dead") & a.last_error_code.is_not(None)),
        ]
        with self._engine.connect() as connection:
            return Progress._make(connection.execute(select(*counts).select_from(self._all)).one())

    def on_their_way(self) -> set[str]:
        """The ids of messages that are neither sent nor dead."""
        return self._ids(self._all.c.state.not_in(["sent", "dead"]))

    def dead(self) -> set[str]:
        """The ids of the dead letters."""
        return self._ids(self._all.c.state == "dead")

    def explained(self) -> set[str]:
        """The ids of messages with a recorded failure."""
        return self._ids(self._all.c.last_error_code.is_not(None))

    def _ids(self, condition: ColumnElement[bool]) -> set[str]:
        with self._engine.connect() as connection:
            return set(map(str, connection.scalars(select(self._all.c.id).where(condition))))


def report_of(setup: DemoSetup, shop: Shop, counts: RelayCounts, killed: KilledWorker | None, seconds: float) -> Report:
    """Count, after the relay has stopped."""
    first: dict[str, float] = {}
    arrivals: Counter[str] = Counter()
    for message_id, arrived in _arrivals(setup.redis, setup.stream):
        first.setdefault(message_id, arrived)
        arrivals[message_id] += 1
    repeated = {message_id for message_id, times in arrivals.items() if times > 1}
    dead, unfinished, progress = counts.dead(), counts.on_their_way(), counts.progress()
    delivered = shop.committed.keys() & first.keys()
    waits = sorted(max(0.0, first[found] - shop.committed[found]) * 1000 for found in delivered)
    figures = Figures(
        committed=len(shop.committed),
        rolled_back=len(shop.rolled_back),
        delivered=len(delivered),
        duplicates=arrivals.total() - len(first),
        retried=progress.retried,
        dead=len(dead),
        lost=len(shop.committed.keys() - first.keys() - dead - unfinished),
        ghosts=len(first.keys() - shop.committed.keys()),
        seconds=round(seconds, 2),
        per_second=round(len(delivered) / seconds, 1),
        p50_ms=_share(waits, 0.50),
        p99_ms=_share(waits, 0.99),
        unfinished=len(unfinished),
    )
    return Report(
        figures,
        killed,
        failures=setup.failures.total(),
        unexplained=len(repeated - counts.explained()),
        undeliverable_is_dead=dead == {shop.undeliverable},
    )


def _arrivals(client: redis.Redis, stream: str) -> Iterator[tuple[str, float]]:
    """Every entry of the stream, as the message's id and the Unix time of its arrival by our clock."""
    asked = time.time()
    seconds, microseconds = client.time()
    ahead = seconds + microseconds / 1e6 - (asked + time.time()) / 2
    last = "-"
    while entries := cast(Entries, client.xrange(stream, min=last, count=PAGE)):
        for entry, fields in entries:
            # The id of an entry has the server's milliseconds, rounded down.
            yield fields["ce_id"], (int(entry.partition("-")[0]) + 1) / 1000 - ahead
        last = f"({entry}"


def _share(ordered: list[float], share: float) -> float | None:
    """The value that this share of the values does not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 1) if ordered else None


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    return f"{milliseconds:,.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"
