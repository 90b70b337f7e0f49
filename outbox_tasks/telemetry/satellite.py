"""What telemetry adds to workers: counts, heartbeats, metrics, alerts and logs. The tasks know nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox_tasks.satellites import Satellite


class Telemetry(Satellite):
    def install(self, app: Any, settings: Any) -> None:
        from outbox_tasks.telemetry.logs import quieten_claims

        quieten_claims()

    def own_app(self, app: Any) -> None:
        from outbox_tasks.telemetry.logs import set_up

        set_up(app)

    def register(self, resources: Any, common: Mapping[str, Any]) -> None:
        from outbox_tasks.telemetry.connect import connect

        connect(resources)
