"""After Redis has lost everything: its database is flushed while singles are under way.

Each message travels as a Celery task of its own. When a part of them has arrived, the broker's database is flushed; the
stream, in another database, stays. The clock runs from there until the next message arrives, and until all have.
"""

from __future__ import annotations

import time
from typing import Any

import click

from bench.relay import AGAINST, Bench, sides
from bench.report import Figures, Say, bench

AIM = "≤ 30"


class Recovery(Bench):
    """A relay that loses its queues."""

    def flushed(self, count: int) -> dict[str, Any]:
        """Seconds from the flush to the next arrival, and to the end."""
        self.empty()
        with self.relay("all"):
            self.write(count)
            self.wake()
            self.wait_for(lambda: self.arrived() >= count // 4, "a part has arrived")
            self.broker.flushdb()
            began = time.perf_counter()
            time.sleep(1)  # what workers had fetched before is sent now
            before = self.arrived()
            self.wait_for(lambda: self.arrived() > before or self.is_settled(), "another one arrives")
            again = time.perf_counter() - began
            self.wait_for(self.is_settled, "all have ended")
            seconds = time.perf_counter() - began
        entries: Any = self.stream.xrange("bench")
        twice = len(entries) - len({fields[b"ce_id"] for _, fields in entries})
        return {"next s": round(again, 1), "all s": round(seconds, 1), "aim": AIM, "arrived twice": twice}

    def arrived(self) -> int:
        return int(self.stream.xlen("bench"))


@bench
@click.option("--rounds", default=3, show_default=True, help="How often each takes its turn.")
@click.option("--messages", default=4_000, show_default=True, help="Under way.")
@AGAINST
def main(say: Say, rounds: int, messages: int, against: str | None) -> list[Figures]:
    """After a flush of Redis."""
    found: dict[str, dict[str, Any]] = {}
    with sides(Recovery, against) as runs:
        for turn in range(rounds):
            for other, run in runs.items():
                say(f"round {turn + 1} of {rounds}{other}")
                found[f"{turn + 1}{other}"] = run.flushed(messages)
    return [Figures("after a flush", found, f"{messages:,} messages")]
