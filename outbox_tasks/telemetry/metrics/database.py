"""The state of the outbox as gauges: its problems, and what its database says. docs/metrics.md says what each means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.operating import overview, status
from outbox_tasks.operating.overview import Destinations, DestinationStatus
from outbox_tasks.operating.problems import Connections, Examination, Severity
from outbox_tasks.operating.status import Status

OTHERS = ""
"""Stands for all destinations that are not configured: rows may name any number of them."""


def registry(connections: Connections) -> CollectorRegistry:
    gauges = CollectorRegistry()
    gauges.register(_Gauges(status.read(connections), connections.settings.destinations))
    return gauges


class _Gauges(Collector):
    def __init__(self, seen: Status, configured: Iterable[str]) -> None:
        self._seen, self._configured = seen, sorted(configured)

    def collect(self) -> Iterable[Metric]:
        yield from _problems(self._seen.examination)
        if self._seen.destinations:  # else the database gave no answer, or was too slow
            yield from _messages(self._seen.destinations, self._configured)
            yield from _relay(self._seen)


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """`values`: by the values of the labels."""
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for of_labels, value in values.items():
        gauge.add_metric(of_labels, value)
    return gauge


def _problems(examination: Examination) -> list[Metric]:
    problems = {(each.code, each.which, each.severity.value): 1.0 for each in examination.problems}
    counts = Counter(each.severity for each in examination.problems)
    by_severity = {(severity.value,): counts[severity] for severity in Severity}
    return [
        _gauge("outbox_problem", "1: there is this problem.", ["code", "which", "severity"], problems),
        _gauge("outbox_problems", "How many problems there are.", ["severity"], by_severity),
    ]


def _messages(destinations: Destinations, configured: Sequence[str]) -> list[Metric]:
    to = ["destination"]
    by_name: dict[str, list[DestinationStatus]] = {name: [] for name in configured}
    for name, each in destinations.items():
        by_name.setdefault(name if name in by_name else OTHERS, []).append(each)
    rows = {(name, state): sum(each.states[state] for each in statuses)
            for name, statuses in by_name.items() for state in overview.STATES}  # fmt: skip
    due = {(name,): sum(each.due for each in statuses) for name, statuses in by_name.items()}
    oldest = {(name,): max(each.oldest or 0.0 for each in statuses) for name, statuses in by_name.items()}
    held_up = {(name,): sum(each.held_up for each in statuses) for name, statuses in by_name.items()}
    return [
        _gauge("outbox_rows", "Messages in a state.", [*to, "state"], rows),
        _gauge("outbox_due", "Messages that could be claimed now.", to, due),
        _gauge("outbox_oldest_due_seconds", "For how long the oldest has been due.", to, oldest),
        _gauge("outbox_keys_held_up", "Keys held up by a dead message.", to, held_up),
    ]


def _relay(seen: Status) -> list[Metric]:
    by, feeds = ["feed"], {(feed.name,): feed for feed in seen.feeds}
    copied = {name: feed.copied for name, feed in feeds.items()}
    waiting = {name: feed.waiting for name, feed in feeds.items()}
    oldest = {name: feed.age for name, feed in feeds.items()}
    archived = "Messages in the archive, estimated when there are many."
    return [
        _gauge(
            "outbox_workers", f"Workers seen within {LATE_SECONDS:g} seconds.", [], {(): len(seen.heartbeats.alive)}
        ),
        _gauge("outbox_drains", "Drains that are at work.", [], {(): seen.drains}),
        _gauge("outbox_archive_rows", archived, [], {(): seen.archived}),
        _gauge("outbox_feed_copied", "Rows of a feed that were copied, in all.", by, copied),
        _gauge("outbox_feed_waiting", "Rows that wait at the source, counted to 10,000.", by, waiting),
        _gauge("outbox_feed_oldest_seconds", "For how long the oldest of them has.", by, oldest),
    ]
