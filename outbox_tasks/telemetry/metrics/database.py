"""The gauges of the database: the state of the outbox. docs/metrics.md says what each gauge means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outbox_tasks.database.activity import LATE
from outbox_tasks.operating import overview
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.operating.overview import Destinations, DestinationStatus, Overview
from outbox_tasks.relay.store import Store

STATES = ("closed", "refuses", "open", "trying", "paused")
"""States of a destination: see `DestinationStatus.state`."""

COUNTED = 10_000
"""Handed-over tasks are counted up to so many."""

OTHERS = ""
"""Stands for all destinations that are not configured."""

DAY = 1440
"""Minutes for which counts are kept."""


def families(store: Store) -> list[Metric]:
    """All gauges. A few statements read them, from a bounded part of the tables."""
    seen, configured = overview.read(store), sorted(store.settings.destinations)
    return [
        *_messages(seen.destinations, configured),
        *_handed_over(store),
        _states(seen.destinations, configured),
        *_processes(seen),
        *_feeds(seen),
        _archive(store),
        _last_day(store),
    ]


def registry(store: Store) -> CollectorRegistry:
    """See `metrics.database_registry`."""
    made = CollectorRegistry()
    made.register(_Found(families(store)))
    return made


class _Found(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def _gauge(name: str, text: str, labels: Sequence[str], found: Mapping[Any, float]) -> Metric:
    """`found`: by the values of the labels."""
    made = GaugeMetricFamily(name, text, labels=labels)
    for values, number in found.items():
        made.add_metric(values, number)
    return made


def _messages(destinations: Destinations, configured: Sequence[str]) -> list[Metric]:
    to, by = ["destination"], _by_name(destinations, configured)
    rows = {(name, state): sum(one.states[state] for one in by[name]) for name in by for state in overview.STATES}
    due = {(name,): sum(one.due for one in some) for name, some in by.items()}
    oldest = {(name,): max((one.oldest or 0.0 for one in some), default=0.0) for name, some in by.items()}
    held_up = {(name,): sum(one.held_up for one in some) for name, some in by.items()}
    return [
        _gauge("outbox_rows", "Messages in a state.", [*to, "state"], rows),
        _gauge("outbox_due", "Messages that could be claimed now.", to, due),
        _gauge("outbox_oldest_due_seconds", "For how long the oldest has been due.", to, oldest),
        _gauge("outbox_keys_held_up", "Keys held up by a dead message.", to, held_up),
    ]


def _by_name(destinations: Destinations, configured: Sequence[str]) -> dict[str, list[DestinationStatus]]:
    """Each configured destination, and all others together: rows may name any number of them."""
    found: dict[str, list[DestinationStatus]] = {name: [] for name in configured}
    for name, one in destinations.items():
        found.setdefault(name if name in found else OTHERS, []).append(one)
    return found


def _handed_over(store: Store) -> list[Metric]:
    labels = ["destination", "task"]
    waiting: Counter[tuple[str, ...]] = Counter()
    oldest: dict[tuple[str, ...], float] = {}
    for row in store.ask("run/by_task.sql", most=COUNTED):
        key = (row.destination if row.destination in store.settings.destinations else OTHERS, row.task)
        waiting[key] += row.count
        oldest[key] = max(oldest.get(key, 0.0), row.oldest)
    return [
        _gauge("outbox_tasks_waiting", "Handed-over tasks that have not begun.", labels, waiting),
        _gauge("outbox_tasks_waiting_seconds", "For how long the first of them has.", labels, oldest),
    ]


def _states(destinations: Destinations, configured: Sequence[str]) -> Metric:
    found = {(name, state): float(destinations[name].state == state) for name in configured for state in STATES}
    return _gauge(
        "outbox_destination_state", "1: what a destination is, 0: what it is not.", ["destination", "state"], found
    )


def _processes(seen: Overview) -> list[Metric]:
    beats = seen.heartbeats
    ages = {(row.name,): max(0.0, row.age) for row in beats.workers}
    # A late claim is a trouble, not a task.
    ran = {(row.name,): max(0.0, row.age) for row in beats.last.values() if row.kind != LATE_CLAIM}
    return [
        _gauge("outbox_workers", f"Workers seen within {LATE:g} seconds.", [], {(): len(beats.alive)}),
        _gauge("outbox_worker_seen_seconds", "Since a worker was last seen.", ["worker"], ages),
        _gauge("outbox_ran_seconds", "Since a claim, a send, beat's tick or maintenance ran.", ["what"], ran),
        _gauge("outbox_drains", "Drains that are at work.", [], {(): seen.drains}),
    ]


def _feeds(seen: Overview) -> list[Metric]:
    by, feeds = ["feed"], {(one.name,): one for one in seen.feeds}
    copied = {name: one.copied for name, one in feeds.items()}
    waiting = {name: one.waiting for name, one in feeds.items()}
    oldest = {name: one.age for name, one in feeds.items()}
    failing = {name: one.failing or 0.0 for name, one in feeds.items()}
    return [
        _gauge("outbox_feed_copied", "Rows of a feed that were copied, in all.", by, copied),
        _gauge("outbox_feed_waiting", "Rows that wait at the source, counted to 10,000.", by, waiting),
        _gauge("outbox_feed_oldest_seconds", "For how long the oldest of them has.", by, oldest),
        _gauge("outbox_feed_failing_seconds", "Since the source of a feed fails.", by, failing),
    ]


def _archive(store: Store) -> Metric:
    found = {(): overview.archived(store)[0]}
    return _gauge("outbox_archive_rows", "Messages in the archive, estimated when there are many.", [], found)


def _last_day(store: Store) -> Metric:
    counted: Counter[tuple[str, ...]] = Counter()
    for row in store.ask("report/tallied.sql", minutes=DAY):
        name = row.destination if row.destination in store.settings.destinations else OTHERS
        counted[name, row.outcome] += row.counted
    return _gauge("outbox_last_day", "What became of messages in the last day.", ["destination", "outcome"], counted)
