"""The doctor's problems, and the alerts that people were sent."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.responses import Response

from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.problems import Examination, examine
from outbox_tasks.telemetry.alerts import known
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def doctor(visit: Visit) -> Response:
    """The problems. The doctor looks when somebody loads the page, which may take seconds; it does not refresh."""

    def look() -> tuple[Examination, datetime]:
        return examine(visit.settings, visit.shared.connections.installed, deep=True), datetime.now(UTC)

    examination, looked_at = visit.look("doctor", look, seconds=5.0)
    try:
        alerts = visit.look("alerts", lambda: known(visit.store, ROWS_SHOWN))
    except OutboxError:  # the problems say that the database does not answer
        alerts = None
    return visit.show("doctor.html", again=None, examination=examination, looked_at=looked_at, alerts=alerts)
