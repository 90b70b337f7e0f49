"""What a worker's processes count. docs/metrics.md says what each metric means."""

from __future__ import annotations

import os
from collections import Counter as Count
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app, values
from prometheus_client.multiprocess import MultiProcessCollector

from outbox_tasks import signals
from outbox_tasks.model import UNKNOWN_DESTINATION, Step, Verdict
from outbox_tasks.relay.claim import Tally
from outbox_tasks.telemetry.metrics import VARIABLE

__all__ = ["WorkerMetrics", "count_in_files", "make_wsgi_app", "registry"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""From the fastest send after a nudge to a delay that people should see to."""

CLAIM_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)

CODES_AT_MOST = 40
"""Error codes of a destination that a process distinguishes. Later ones are `other`: a destination can answer with any
number of codes."""

CAUSES = ("unsettled", "lease_expired", "not_started", "worker_lost")
"""Why a lease ran out: see claim/expire.sql and supervised/expire.sql."""

ARRIVED = (Step.SENT, Step.HANDED)

LOST = "lost"
"""The outcome of a message that was begun, and whose lease was lost before the settle."""

UNROUTABLE = ""
"""Stands for all destinations that are not configured."""


def count_in_files() -> None:
    """Have the metrics that this process makes from now on count in the files that all processes share.

    prometheus-client decides this as it is imported. Flower's plugin for the `celery` command, or the application, has
    often done that before the worker could name a directory.
    """
    if values.ValueClass is values.MutexValue:
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]


def registry() -> CollectorRegistry:
    """What all processes of this worker have counted."""
    counts = CollectorRegistry()
    _Begun(counts)  # type: ignore[no-untyped-call]
    return counts


class _Begun(MultiProcessCollector):
    """Collects from the files that are begun. A file is empty while a process makes it, and stays so if the process is
    killed then: prometheus-client would fail at it."""

    def collect(self) -> Any:
        files = Path(os.environ[VARIABLE]).glob("*.db")
        return self.merge([str(file) for file in files if file.stat().st_size])  # type: ignore[no-untyped-call]


class WorkerMetrics:
    """The metrics of a process. The counts of its destinations begin at zero: Prometheus can't see an increase from
    nothing."""

    def __init__(self, destinations: Iterable[str]) -> None:
        # Without a registry: a scrape reads the files of all processes instead.
        counter, histogram = partial(Counter, registry=None), partial(Histogram, registry=None)
        to = ["destination"]
        self.messages = counter("outbox_messages", "What became of messages.", [*to, "outcome"])
        self.errors = counter("outbox_errors", "Sends that failed, by the code of the error.", [*to, "code"])
        self.attempts = counter("outbox_attempts", "Sends of messages that were begun.", to)
        self.again = counter("outbox_claimed_again", "Messages whose lease had run out.", [*to, "cause"])
        self.opened = counter("outbox_breaker_opened", "Breakers opened, or kept open by a failed try.", [*to, "code"])
        self.blocked = counter("outbox_keys_blocked", "Keys that a dead message began to hold up.", to)
        self.claims = counter("outbox_claims", "Claims that were run.")
        self.held_back = counter("outbox_claims_held_back", "Claims that left messages alone: workers are behind.")
        self.singles = counter("outbox_claimed_singles", "Messages that were leased singly, each for a publish task.")
        self.drains = counter("outbox_claimed_drains", "Drains that were started.")
        self.claim_seconds = histogram("outbox_claim_seconds", "How long a claim took.", buckets=CLAIM_SECONDS)
        self.send_seconds = histogram(
            "outbox_send_seconds", "A single or a batch, from begin to settle.", to, buckets=SECONDS
        )
        self.sizes = histogram(
            "outbox_batch_messages", "How many messages a batch had; a single is one.", to, buckets=SIZES
        )
        self.latency = histogram(
            "outbox_latency_seconds", "From when a message was due until it was settled as sent.", to, buckets=SECONDS
        )
        task = ["task"]
        self.task_wait = histogram(
            "outbox_task_wait_seconds", "From when a supervised task was handed over until it began to run.", task,
            buckets=SECONDS,
        )  # fmt: skip
        self.task_run = histogram(
            "outbox_task_seconds", "How long a supervised task ran, by Celery's state.", [*task, "state"],
            buckets=SECONDS,
        )  # fmt: skip
        self._codes: dict[str, set[str]] = {}
        for destination in destinations:
            for outcome in (*Step, LOST):
                self.messages.labels(destination, str(outcome))
            for cause in CAUSES:
                self.again.labels(destination, cause)
            for metric in (self.attempts, self.blocked, self.send_seconds, self.sizes, self.latency):
                metric.labels(destination)

    def listen(self, app: Celery) -> None:
        receivers: dict[signals.Signal, Callable[..., None]] = {
            signals.claimed: self._count_claimed,
            signals.settled: self._count_settled,
            signals.breaker_opened: self._count_opened,
            signals.key_blocked: self._count_blocked,
            signals.task_ran: self._count_task,
        }
        for signal, receiver in receivers.items():
            signal.connect(receiver, sender=app, weak=False)

    def _count_settled(self, destination: str, verdicts: Sequence[Verdict], seconds: float, **_: Any) -> None:
        self.send_seconds.labels(destination).observe(seconds)
        self.sizes.labels(destination).observe(len(verdicts))
        arrived = [verdict for verdict in verdicts if verdict.step in ARRIVED]
        latency = self.latency.labels(destination)
        for verdict in arrived:
            # Ten years at most: anybody can write a row, and one from the year -4712 must not spoil the sum for good.
            latency.observe(min(10 * 365 * 86_400.0, max(0.0, verdict.message.age + seconds)))
        for outcome, count in Count(map(_outcome, verdicts)).items():
            self.messages.labels(destination, outcome).inc(count)
        if attempts := sum(verdict.sent or verdict.step in ARRIVED for verdict in verdicts):
            self.attempts.labels(destination).inc(attempts)
        if len(arrived) < len(verdicts):
            failed = Count(each.code for each in verdicts if each.code is not None)
            self._count_errors(destination, failed)

    def _count_claimed(self, tally: Tally, seconds: float, **_: Any) -> None:
        self.claims.inc()
        self.claim_seconds.observe(seconds)
        if tally.held_back:
            self.held_back.inc()
        self.singles.inc(tally.singles)
        self.drains.inc(tally.drains)
        for (destination, cause), count in tally.expired.items():
            self.again.labels(destination, cause).inc(count)
        self.messages.labels(UNROUTABLE, Step.DEAD.value).inc(len(tally.buried))
        self._count_errors(UNROUTABLE, Count({UNKNOWN_DESTINATION: len(tally.buried)}))

    def _count_errors(self, destination: str, codes: Count[str]) -> None:
        for code, count in codes.items():
            self.errors.labels(destination, self._code_label(destination, code)).inc(count)

    def _count_opened(self, destination: str, code: str | None, **_: Any) -> None:
        self.opened.labels(destination, self._code_label(destination, code or "none")).inc()

    def _count_blocked(self, destination: str, **_: Any) -> None:
        self.blocked.labels(destination).inc()

    def _count_task(self, task: str, state: str, waited: float | None, seconds: float, **_: Any) -> None:
        if waited is not None:
            self.task_wait.labels(task).observe(waited)
        self.task_run.labels(task, state or "none").observe(seconds)

    def _code_label(self, destination: str, code: str) -> str:
        known, code = self._codes.setdefault(destination, set()), code[:60]
        if code not in known and len(known) >= CODES_AT_MOST:
            return "other"
        known.add(code)
        return code


def _outcome(verdict: Verdict) -> str:
    return LOST if verdict.step is Step.STALE and verdict.sent else verdict.step.value
