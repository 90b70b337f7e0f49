"""The result of the demo: what arrived at the destination, compared with what the application committed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outbox_tasks.local.demo_shop import Shop
from outbox_tasks.model import UNSETTLED


@dataclass(frozen=True)
class Report:
    """What `--json` prints."""

    committed: int
    rolled_back: int
    failures: int
    """Requests that the destination failed."""
    killed: int | None
    """Messages that a worker was sending when it was killed; None: no worker was killed."""
    delivered: int
    """Distinct messages found at the destination."""
    duplicates: int
    after_kill: int
    """Those of the duplicates that the killed worker had sent before."""
    unexplained: int
    """Messages that arrived more than once without a cause on their row."""
    retried: int
    dead: int
    wrong_dead: bool
    """The dead letter is not the message that can't be delivered."""
    lost: int
    """Committed, and neither at the destination nor dead nor still on its way."""
    ghosts: int
    """Messages found at the destination that were not committed."""
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float
    unfinished: int
    """On their way when nothing had moved for long."""

    @property
    def problems(self) -> list[str]:
        """Broken promises, in plain words."""
        return _applying({
            f"Committed, yet missing at the destination: {self.lost:,}": self.lost,
            f"Delivered, though nobody had committed them: {self.ghosts:,}": self.ghosts,
            "The message that can't be delivered is not the one dead letter there is": self.wrong_dead,
            f"Arrived more than once, without a recorded cause: {self.unexplained:,}": self.unexplained,
        })  # fmt: skip

    @property
    def not_shown(self) -> list[str]:
        """What the demo could not show. This says nothing against the relay."""
        return _applying({
            f"{self.unfinished:,} messages were still on their way. Is the machine busy?": self.unfinished,
            "No publish worker was met while it was sending, to be killed": self.killed is None,
        })  # fmt: skip

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
        for text in self.not_shown:
            console.print(Text(f"! Not shown: {text}", style="yellow"))
        if not self.problems:
            verdict = "✓ Nothing was lost, and nothing that was rolled back was delivered."
            console.print(Text(verdict, style="bold green"))

    def _lines(self) -> Iterator[tuple[str, int | str]]:
        yield "Orders committed, each with its message", self.committed
        yield "Orders rolled back after their message was written", self.rolled_back
        yield "Requests that the destination failed", self.failures
        yield "Messages that met trouble on their way, and were tried again", self.retried
        yield "Messages found at the destination", self.delivered
        yield "Sent twice: the destination had taken them, and its answer was lost", self.duplicates - self.after_kill
        yield f"Sent twice: by the killed worker, too (messages in its hands: {self.killed or 0:,})", self.after_kill
        yield "Can never be delivered: kept as dead letters", self.dead
        yield "Lost", self.lost
        yield "Rolled back, yet delivered", self.ghosts
        yield "From commit to arrival: half of them within", f"{self.p50_ms:,.0f} ms"
        yield "                        99 of 100 within", f"{self.p99_ms:,.0f} ms"
        yield f"Messages a second, over {self.seconds:.1f} s with failures and kill", round(self.per_second)


def report_of(
    shop: Shop, messages: Mapping[str, tuple[str, str | None]], arrivals: Sequence[tuple[str, float]], seconds: float,
    killed: int | None, failures: int,
) -> Report:  # fmt: skip
    """Count, after the relay has stopped. `messages`: the state and the last error's code of each, by its id."""
    times = Counter(id for id, _ in arrivals)
    first = dict(reversed(arrivals))
    dead = {id for id, (state, _) in messages.items() if state == "dead"}
    unfinished = {id for id, (state, _) in messages.items() if state not in ("sent", "dead")}
    causes = {id: messages.get(id, ("", None))[1] for id, count in times.items() if count > 1}
    delivered = shop.committed.keys() & first.keys()
    waits = sorted(max(0.0, first[id] - shop.committed[id]) * 1000 for id in delivered) or [0.0]
    return Report(
        committed=len(shop.committed),
        rolled_back=len(shop.rolled_back),
        failures=failures,
        killed=killed,
        delivered=len(delivered),
        duplicates=len(arrivals) - len(first),
        after_kill=sum(times[id] - 1 for id, cause in causes.items() if cause == UNSETTLED),
        unexplained=sum(cause is None for cause in causes.values()),
        retried=sum(code is not None for state, code in messages.values() if state != "dead"),
        dead=len(dead),
        wrong_dead=not unfinished and dead != {shop.undeliverable},
        lost=len(shop.committed.keys() - first.keys() - dead - unfinished),
        ghosts=len(first.keys() - shop.committed.keys()),
        seconds=round(seconds, 2),
        per_second=round(len(delivered) / seconds, 1),
        p50_ms=_share(waits, 0.50),
        p99_ms=_share(waits, 0.99),
        unfinished=len(unfinished),
    )


def arrivals_in(client: redis.Redis) -> list[tuple[str, float]]:
    """Every entry of the stream, as the message's id and the Unix time of its arrival by our clock."""
    before = time.time()
    seconds, microseconds = client.time()
    ahead = seconds + microseconds / 1e6 - (before + time.time()) / 2
    entries: Any = client.xrange("orders")
    # The id of an entry has the server's milliseconds, rounded down.
    return [(fields["ce_id"], (int(entry.partition("-")[0]) + 1) / 1000 - ahead) for entry, fields in entries]


def _applying(checks: Mapping[str, object]) -> list[str]:
    """The texts whose condition holds."""
    return [text for text, applies in checks.items() if applies]


def _share(ordered: list[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 1)
