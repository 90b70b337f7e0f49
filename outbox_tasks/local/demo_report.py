"""The result of the demo: what arrived at the destination, compared with what the application committed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import redis
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine, column, func, select, table

from outbox_tasks.local.demo_app import Shop


class KilledWorker(NamedTuple):
    """The publish worker that was killed, and how many messages it was sending."""

    name: str
    held: int


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
            (not self.undeliverable_is_dead and not f.unfinished, dead),
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
            grid.add_row(label, value if isinstance(value, str) else f"{value:,}")
        console.print("", grid, "", sep="\n")
        for problem in self.problems:
            console.print(Text(f"✗ {problem}", style="bold red"))
        for text in self.not_finished:
            console.print(Text(f"! Not finished: {text}", style="yellow"))
        if not self.problems:
            verdict = "✓ Nothing was lost, and nothing that was rolled back was delivered."
            console.print(Text(verdict, style="bold green"))

    def _lines(self) -> Iterator[tuple[str, int | str]]:
        f = self.figures
        yield "Orders committed, each with its message", f.committed
        yield "Orders rolled back after their message was written", f.rolled_back
        yield "Requests that the destination failed", self.failures
        if self.killed is not None:
            yield f"Messages that {self.killed.name} was sending at its kill -9", self.killed.held
        yield "Messages that met trouble on their way, and were tried again", f.retried
        yield "Messages found at the destination", f.delivered
        cause = "" if self.unexplained else ", each with a recorded cause"
        yield f"Repetitions there, of the same id{cause}", f.duplicates
        yield "Can never be delivered: kept as dead letters", f.dead
        yield "Lost", f.lost
        yield "Rolled back, yet delivered", f.ghosts
        yield "From commit to arrival: half of them within", _duration(f.p50_ms)
        yield "                        99 of 100 within", _duration(f.p99_ms)
        yield f"Messages a second, over {f.seconds:.1f} s with failures and kill", round(f.per_second)


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
        self._all = table("outbox_all", column("id"), column("state"), column("last_error_code"), schema=schema)

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

    def messages(self) -> dict[str, tuple[str, str | None]]:
        """Each message's state and the code of its last error, by its id."""
        with self._engine.connect() as connection:
            return {str(id): (state, code) for id, state, code in connection.execute(select(self._all))}


def report_of(
    shop: Shop, counts: RelayCounts, arrivals: Sequence[tuple[str, float]], seconds: float, killed: KilledWorker | None,
    failures: int,
) -> Report:  # fmt: skip
    """Count, after the relay has stopped."""
    times = Counter(message_id for message_id, _ in arrivals)
    first = dict(reversed(arrivals))
    messages, progress = counts.messages(), counts.progress()
    dead = {id for id, (state, _) in messages.items() if state == "dead"}
    unfinished = {id for id, (state, _) in messages.items() if state not in ("sent", "dead")}
    delivered = shop.committed.keys() & first.keys()
    waits = sorted(max(0.0, first[found] - shop.committed[found]) * 1000 for found in delivered)
    figures = Figures(
        committed=len(shop.committed),
        rolled_back=len(shop.rolled_back),
        delivered=len(delivered),
        duplicates=len(arrivals) - len(first),
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
    unexplained = sum(count > 1 and messages.get(id, ("", None))[1] is None for id, count in times.items())
    return Report(figures, killed, failures, unexplained, undeliverable_is_dead=dead == {shop.undeliverable})


def arrivals_in(client: redis.Redis, stream: str) -> list[tuple[str, float]]:
    """Every entry of the stream, as the message's id and the Unix time of its arrival by our clock."""
    asked = time.time()
    seconds, microseconds = client.time()
    ahead = seconds + microseconds / 1e6 - (asked + time.time()) / 2
    entries: Any = client.xrange(stream)
    # The id of an entry has the server's milliseconds, rounded down.
    return [(fields["ce_id"], (int(entry.partition("-")[0]) + 1) / 1000 - ahead) for entry, fields in entries]


def _share(ordered: list[float], share: float) -> float | None:
    """The value that this share of the values does not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 1) if ordered else None


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    return f"{milliseconds:,.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"
