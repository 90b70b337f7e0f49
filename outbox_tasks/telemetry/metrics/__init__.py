"""Metrics for Prometheus: what a worker's processes count, where `monitor_port` is set; and how the database stands.

A worker's processes listen to the signals, a bundle at a time. Each counts in files of its own, by prometheus-client's
multiprocess mode, and whoever is asked adds up all of the worker's, those of processes that were killed too. Without
`monitor_port` nothing is imported and nobody listens.
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
    """Have the workers of the relay's app count, if their settings say so."""
    app = resources.app
    counting = False

    def begin(sender: Any = None, **_: Any) -> None:
        # In the main process, before it forks: the directory must be the same for all, and what is imported is shared.
        if sender.app is app and resources.settings.monitor_port is not None:
            try:
                _part("directory").prepare()
                count()
            except MetricsNotInstalled as error:
                log.warning("%s", error)

    def join(**_: Any) -> None:
        # In a process of the pool: it counts already if it was forked, but not if it was spawned.
        if resources.settings.monitor_port is not None and os.environ.get(VARIABLE):
            count()

    def count() -> None:
        nonlocal counting
        if not counting:
            _part("directory").count_here()
            _part("workers").Counting(resources.settings.destinations).listen(app)
            counting = True

    def leave(**_: Any) -> None:
        if counting:
            _part("directory").leave()

    signals.worker_init.connect(begin, weak=False)
    signals.worker_process_init.connect(join, weak=False)
    signals.worker_process_shutdown.connect(leave, weak=False)
    signals.worker_shutdown.connect(leave, weak=False)


def exposition() -> tuple[bytes, str]:
    """What this worker's processes have counted, as Prometheus reads it, and its content type.

    Raises `MetricsNotInstalled`.
    """
    found: tuple[bytes, str] = _part("directory").exposition()
    return found


def database_exposition(store: Store) -> tuple[bytes, str]:
    """How the outbox stands, by its database, as Prometheus reads it, and its content type.

    Raises `MetricsNotInstalled`, and what the store raises.
    """
    found: tuple[bytes, str] = _part("database").exposition(store)
    return found


def database_samples(store: Store) -> list[dict[str, Any]]:
    """The same for programs: a name, labels and a value each."""
    samples = [sample for family in _part("database").families(store) for sample in family.samples]
    return [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in samples]


def _part(name: str) -> Any:
    """One of the modules beside this one, which need prometheus-client."""
    try:
        return importlib.import_module(f"outbox_tasks.telemetry.metrics.{name}")
    except ImportError as error:
        raise MetricsNotInstalled(missing=error.name or error) from error
