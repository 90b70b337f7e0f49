"""Attaches counters, heartbeats, metrics, alerts, logs and the monitor to the workers of an app.

The tasks know nothing of them. They send the signals of `outbox_tasks.signals`.
"""

from __future__ import annotations

from outbox_tasks.signals import settled
from outbox_tasks.telemetry import logs, metrics
from outbox_tasks.telemetry.alerts import AlertsStep
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.telemetry.heartbeat import HeartbeatStep
from outbox_tasks.telemetry.monitor import MonitorStep
from outbox_tasks.worker.resources import Resources


def connect(resources: Resources) -> None:
    """Called once for an app."""
    app = resources.app
    counters = Counters(lambda: resources.store)
    counters.connect(app)
    resources.before_close.append(counters.close)
    settled.connect(logs.log_settled, sender=app, weak=False)
    app.steps["consumer"].add(HeartbeatStep)
    metrics.connect(resources)
    app.steps["worker"].add(MonitorStep)
    app.steps["worker"].add(AlertsStep)
