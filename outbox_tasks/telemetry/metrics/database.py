"""The gauges of the database: the state of the outbox. docs/metrics.md says what each gauge means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
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


def exposition(store: Store) -> tuple[bytes, str]:
    """See `metrics.database_exposition`."""
    registry = CollectorRegistry()
    registry.register(_Found(families(store)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Found(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def _messages(destinations: Destinations, configured: Sequence[str]) -> list[Metric]:
    to = ["destination"]
    rows = GaugeMetricFamily("outbox_rows", "Messages in a state.", labels=[*to, "state"])
    due = GaugeMetricFamily("outbox_due", "Messages that could be claimed now.", labels=to)
    oldest = GaugeMetricFamily("outbox_oldest_due_seconds", "For how long the oldest has been due.", labels=to)
    held_up = GaugeMetricFamily("outbox_keys_held_up", "Keys held up by a dead message.", labels=to)
    for name, some in _by_name(destinations, configured).items():
        for state in overview.STATES:
            rows.add_metric([name, state], sum(one.states[state] for one in some))
        due.add_metric([name], sum(one.due for one in some))
        oldest.add_metric([name], max((one.oldest or 0.0 for one in some), default=0.0))
        held_up.add_metric([name], sum(one.held_up for one in some))
    return [rows, due, oldest, held_up]


def _handed_over(store: Store) -> list[Metric]:
    labels = ["destination", "task"]
    waiting = GaugeMetricFamily("outbox_tasks_waiting", "Handed-over tasks that have not begun.", labels=labels)
    oldest = GaugeMetricFamily("outbox_tasks_waiting_seconds", "For how long the first of them has.", labels=labels)
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for row in store.ask("run/by_task.sql", most=COUNTED):
        name = row.destination if row.destination in store.settings.destinations else OTHERS
        count, age = found.get((name, row.task), (0, 0.0))
        found[name, row.task] = count + row.count, max(age, row.oldest)
    for key, (count, age) in found.items():
        waiting.add_metric(key, count)
        oldest.add_metric(key, age)
    return [waiting, oldest]


def _by_name(destinations: Destinations, configured: Sequence[str]) -> dict[str, list[DestinationStatus]]:
    """Each configured destination, and all others together: rows may name any number of them."""
    found: dict[str, list[DestinationStatus]] = {name: [] for name in configured}
    for name, one in destinations.items():
        found.setdefault(name if name in found else OTHERS, []).append(one)
    return found


def _states(destinations: Destinations, configured: Sequence[str]) -> Metric:
    made = GaugeMetricFamily(
        "outbox_destination_state", "1: what a destination is, 0: what it is not.", labels=["destination", "state"]
    )
    for name in configured:
        for state in STATES:
            made.add_metric([name, state], destinations[name].state == state)
    return made


def _processes(seen: Overview) -> list[Metric]:
    workers = GaugeMetricFamily("outbox_workers", f"Workers seen within {LATE:g} seconds.")
    ages = GaugeMetricFamily("outbox_worker_seen_seconds", "Since a worker was last seen.", labels=["worker"])
    ran = GaugeMetricFamily(
        "outbox_ran_seconds", "Since a claim, a send, beat's tick or maintenance ran.", labels=["what"]
    )
    publishing = GaugeMetricFamily("outbox_publish_processes", "Processes that publish.")
    last = [row for row in seen.heartbeats.last.values() if row.kind != LATE_CLAIM]  # a trouble, not a task
    for family, rows in ((ages, seen.heartbeats.workers), (ran, last)):
        for row in rows:
            family.add_metric([row.name], max(0.0, row.age))
    workers.add_metric([], len(seen.heartbeats.alive))
    publishing.add_metric([], seen.publish_processes)
    return [workers, ages, ran, publishing]


def _feeds(seen: Overview) -> list[Metric]:
    by = ["feed"]
    copied = GaugeMetricFamily("outbox_feed_copied", "Rows of a feed that were copied, in all.", labels=by)
    waiting = GaugeMetricFamily("outbox_feed_waiting", "Rows that wait at the source, counted to 10,000.", labels=by)
    oldest = GaugeMetricFamily("outbox_feed_oldest_seconds", "For how long the oldest of them has.", labels=by)
    failing = GaugeMetricFamily("outbox_feed_failing_seconds", "Since the source of a feed fails.", labels=by)
    for one in seen.feeds:
        copied.add_metric([one.name], one.copied)
        waiting.add_metric([one.name], one.waiting)
        oldest.add_metric([one.name], one.age)
        failing.add_metric([one.name], one.failing or 0.0)
    return [copied, waiting, oldest, failing]


def _archive(store: Store) -> Metric:
    made = GaugeMetricFamily("outbox_archive_rows", "Messages in the archive, estimated when there are many.")
    made.add_metric([], overview.archived(store)[0])
    return made


def _last_day(store: Store) -> Metric:
    made = GaugeMetricFamily(
        "outbox_last_day", "What became of messages in the last day.", labels=["destination", "outcome"]
    )
    counted: Counter[tuple[str, str]] = Counter()
    for row in store.ask("report/tallied.sql", minutes=DAY):
        name = row.destination if row.destination in store.settings.destinations else OTHERS
        counted[name, row.outcome] += row.counted
    for labels, count in counted.items():
        made.add_metric(labels, count)
    return made
