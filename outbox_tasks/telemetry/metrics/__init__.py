"""Metrics for Prometheus: what a worker's processes count, and the state of the outbox in the database.

The processes of a worker count by the signals, in the files of prometheus-client's multiprocess mode. A scrape adds up
the files of all of them. Without `monitor_port`, nothing is imported and nothing is counted.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from celery import signals

from outbox_tasks.errors import MetricsNotInstalled
from outbox_tasks.relay.store import Store
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def connect(resources: Resources) -> None:
    """Have the workers of the relay's app count, if they have a `monitor_port`."""
    app = resources.app
    counting = False

    def prepare(sender: Any = None, **_: Any) -> None:
        # Before the fork: all processes need the same directory, and share what is imported.
        if sender.app is app and resources.settings.monitor_port is not None:
            try:
                _part("directory").prepare()
                count()
            except MetricsNotInstalled as error:
                log.warning("%s", error)

    def count_in_child(**_: Any) -> None:
        # A forked process counts already, a spawned one does not.
        if resources.settings.monitor_port is not None and os.environ.get(VARIABLE):
            count()

    def count() -> None:
        nonlocal counting
        if not counting:
            _part("directory").count_here()
            _part("workers").WorkerMetrics(resources.settings.destinations).listen(app)
            counting = True

    def leave() -> None:
        if counting:
            _part("directory").leave()

    signals.worker_init.connect(prepare, weak=False)
    signals.worker_process_init.connect(count_in_child, weak=False)
    resources.before_close.append(leave)


def exposition() -> tuple[bytes, str]:
    """What this worker's processes have counted, and the content type. Raises `MetricsNotInstalled`."""
    found: tuple[bytes, str] = _part("directory").exposition()
    return found


def database_exposition(store: Store) -> tuple[bytes, str]:
    """The state of the outbox in the database, and the content type.

    Raises `MetricsNotInstalled`, and what the store raises.
    """
    found: tuple[bytes, str] = _part("database").exposition(store)
    return found


def database_samples(store: Store) -> list[dict[str, Any]]:
    """The same as a list of names, labels and values."""
    samples = [sample for family in _part("database").families(store) for sample in family.samples]
    return [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in samples]


def _part(name: str) -> Any:
    """A module beside this one. They need prometheus-client."""
    try:
        return importlib.import_module(f"outbox_tasks.telemetry.metrics.{name}")
    except ImportError as error:
        raise MetricsNotInstalled(missing=error.name or error) from error
