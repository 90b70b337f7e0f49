"""What telemetry adds to the workers of an app: counts, heartbeats, metrics, the monitor, alerts and logs.

The tasks know nothing of it. They send the signals of `outbox_tasks.signals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox_tasks.satellites import Satellite


class Telemetry(Satellite):
    def install(self, app: Any, settings: Any) -> None:
        from outbox_tasks.telemetry.logs import quieten

        quieten()

    def own_app(self, app: Any) -> None:
        from outbox_tasks.telemetry.logs import set_up

        set_up(app)

    def register(self, resources: Any, common: Mapping[str, Any]) -> None:
        from outbox_tasks.signals import settled
        from outbox_tasks.telemetry import logs, metrics
        from outbox_tasks.telemetry.alerts import AlertsStep
        from outbox_tasks.telemetry.counters import Counters
        from outbox_tasks.telemetry.heartbeat import HeartbeatStep
        from outbox_tasks.telemetry.monitor import MonitorStep

        app = resources.app
        counters = Counters(lambda: resources.store)
        counters.connect(app)
        resources.before_close.append(counters.close)
        settled.connect(logs.log_settled, sender=app, weak=False)
        app.steps["consumer"].add(HeartbeatStep)
        metrics.connect(resources)
        app.steps["worker"].add(MonitorStep)
        app.steps["worker"].add(AlertsStep)
