"""Counts what this process does. A thread writes the counts to the database every few seconds.

So counting costs a send almost nothing and can't fail it. If a process is killed, the last counts are lost.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery import Celery

from outbox_tasks.database.activity import FAILED, LATE_SECONDS, REFUSED, SENT
from outbox_tasks.errors import OutboxError
from outbox_tasks.model import Step, Verdict
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.claim import Tally
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.signals import claimed, ran, settled
from outbox_tasks.text import logger

log = logger(__name__)

WRITTEN_AFTER_SECONDS = 2.0
"""From a count until it is written; five times as long after a write has failed."""

Run = tuple[float, dict[str, Any]]
"""When something ran, by the monotonic clock, and its facts."""


class Unwritten:
    """What one process has counted and not written yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By destination and outcome."""
        self.runs: dict[str, Run] = {}
        self.timer: threading.Timer | None = None


class Counters:
    """Counts messages by their outcome, and remembers when each part of the relay last ran. Any thread may call it."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._own = PerProcess(Unwritten)

    def connect(self, app: Celery) -> None:
        settled.connect(self._count_settled, sender=app, weak=False)
        claimed.connect(self._count_claimed, sender=app, weak=False)
        ran.connect(self._note_run, sender=app, weak=False)

    def count(self, destination: str, outcomes: Iterable[str]) -> None:
        """Count an outcome for each of some messages: see `model.Step` and claim/expire.sql."""
        self._add(Counter((destination, str(outcome)) for outcome in outcomes), {})

    def ran(self, what: str, **facts: Any) -> None:
        """Note that `claim`, `publish` (a send), `beat` or `maintain` has run."""
        self._add(Counter(), {what: (time.monotonic(), {"by": holder(), **facts})})

    def flush(self) -> bool:
        """Write the counts. Returns whether that worked; if not, it keeps them."""
        own = self._own.get()
        with own.writing:
            with own.lock:
                counts, runs = own.counts, own.runs
                own.counts, own.runs, own.timer = Counter(), {}, None
            try:
                self._write(counts, runs)
            except Exception as error:
                known = isinstance(error, OutboxError)
                log.log(logging.DEBUG if known else logging.ERROR, "could not write the counts", exc_info=error)
                with own.lock:
                    own.counts += counts
                    own.runs = runs | own.runs
                return False
        return True

    def close(self) -> None:
        """Write the last counts, if the database takes them."""
        timer = self._own.get().timer
        if timer is not None:
            timer.cancel()
            self.flush()

    def _count_settled(self, destination: str, verdicts: Sequence[Verdict], **_: Any) -> None:
        self.count(destination, (verdict.step for verdict in verdicts))
        if any(verdict.step is not Step.STALE for verdict in verdicts):
            self.ran("publish")

    def _count_claimed(self, tally: Tally, seconds: float, **_: Any) -> None:
        self.count("", ["dead"] * len(tally.buried))  # unknown destinations together: a writer can name any number
        for (destination, cause), count in tally.expired.items():
            self.count(destination, [cause] * count)
        facts = {"claimed": tally.singles, "drains": tally.drains, "held_back": tally.held_back}
        self.ran("claim", **facts, waiting=tally.queued, seconds=round(seconds, 4))

    def _note_run(self, what: str, **_: Any) -> None:
        self.ran(what)

    def _add(self, counts: Counter[tuple[str, str]], runs: dict[str, Run]) -> None:
        own = self._own.get()
        with own.lock:
            own.counts.update(counts)
            own.runs |= runs
        self._write_in(WRITTEN_AFTER_SECONDS)

    def _write_in(self, wait: float) -> None:
        """Start a thread that writes after `wait` seconds, unless there is one. An idle process has none."""
        own = self._own.get()
        with own.lock:
            if own.timer is None:
                timer = threading.Timer(wait, self._flush_in_time)
                timer.name, timer.daemon = "outbox-counters", True
                timer.start()
                own.timer = timer  # only now: a time limit may interrupt the start

    def _flush_in_time(self) -> None:
        if not self.flush():
            self._write_in(5 * WRITTEN_AFTER_SECONDS)

    def _write(self, counts: Counter[tuple[str, str]], runs: dict[str, Run]) -> None:
        if not counts and not runs:
            return
        now, store = time.monotonic(), self._store()
        if counts:
            rows = [{"destination": to, "outcome": outcome, "count": n} for (to, outcome), n in counts.items()]
            outcomes = {"arrived": [*SENT], "failures": [*FAILED], "refusals": [*REFUSED]}
            store.ask("report/tally.sql", counted=json.dumps(rows), **outcomes)
            counts.clear()  # don't write them again if the next statement fails
        if runs:
            reports = [{"name": k, "kind": k, "ago": now - at, "facts": facts} for k, (at, facts) in runs.items()]
            store.ask("report/beat.sql", seen=json.dumps(reports), late=LATE_SECONDS)
