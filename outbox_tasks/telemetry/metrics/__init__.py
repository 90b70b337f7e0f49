"""Metrics for Prometheus: what a worker's processes count, and the state of the outbox in the database.

The processes of a worker count by the signals, in the files of prometheus-client's multiprocess mode. A scrape adds up
the files of all of them. Without `monitor_port`, nothing is imported and nothing is counted.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from celery import signals

from outbox_tasks.errors import NotInstalled
from outbox_tasks.operating.problems import Connections
from outbox_tasks.per_process import PerProcess
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the directory where all processes of a worker count."""


def connect(resources: Resources) -> None:
    """Have the workers of the relay's app count, if they have a `monitor_port`."""
    app = resources.app
    own_directory = PerProcess(lambda: mkdtemp(prefix="outbox-metrics-"))

    def count(sender: Any = None, **_: Any) -> None:
        # Before the fork: all processes need the same directory, and share what is imported.
        if sender.app is not app or resources.settings.monitor_port is None:
            return
        if VARIABLE in os.environ:
            Path(os.environ[VARIABLE]).mkdir(parents=True, exist_ok=True)
        else:
            os.environ[VARIABLE] = own_directory.get()
        try:
            workers = _part("workers")
        except NotInstalled as error:
            log.warning("%s", error)
            return
        workers.count_in_files()
        workers.WorkerMetrics(resources.settings.destinations).listen(app)

    def remove_directory() -> None:
        if (directory := own_directory.take()) is not None:
            os.environ.pop(VARIABLE, None)
            shutil.rmtree(directory, ignore_errors=True)

    signals.worker_init.connect(count, weak=False)
    resources.before_close.append(remove_directory)


def worker_registry() -> Any:
    """What this worker's processes have counted, as a registry. Raises `NotInstalled`."""
    return _part("workers").registry()


def database_registry(connections: Connections) -> Any:
    """The problems and the state of the outbox now, as a registry. If the database does not answer, that is a problem
    among them. Raises `NotInstalled`."""
    return _part("database").registry(connections)


def wsgi_app(registry: Any) -> Any:
    """prometheus-client's WSGI app, which serves the registry."""
    return _part("workers").make_wsgi_app(registry)


def _part(name: str) -> Any:
    """A module beside this one. They need prometheus-client."""
    try:
        return importlib.import_module(f"outbox_tasks.telemetry.metrics.{name}")
    except ImportError as error:
        missing = error.name or error
        raise NotInstalled(what="Metrics", missing=missing, packages="'outbox-tasks[metrics]'") from error
