"""The doctor's problems, and the alerts that people were sent."""

from __future__ import annotations

import logging
import math
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.problems import Examination, examine
from outbox_tasks.settings import Settings
from outbox_tasks.web import overview
from outbox_tasks.web.visit import Visit

if TYPE_CHECKING:
    from celery import Celery

log = logging.getLogger(__name__)

KEPT, SOON = 30.0, 5.0
"""Seconds for which the doctor's answer counts; and before which it does not look again, even if somebody asks."""

PATIENCE = 0.2
"""Seconds for which a request waits for the answer. If that takes longer, the page shows it by itself."""


class Doctor:
    """Looks for what is wrong in a thread of its own: that may take seconds. It looks once at a time."""

    def __init__(self, settings: Settings, app: Celery | None) -> None:
        self._settings, self._app = settings, app
        self._lock = threading.Lock()
        self._thread = threading.Thread()
        self._ended = -math.inf
        self.found: Examination | None = None
        self.at: datetime | None = None
        """When these were found."""
        self.failed: str | None = None
        """Why the last look found nothing."""

    @property
    def looking(self) -> bool:
        return self._thread.is_alive()

    def look(self, *, again: bool) -> None:
        """Look, unless what was found last still counts. Waits a moment for the answer."""
        with self._lock:
            if not self.looking and time.monotonic() - self._ended > (SOON if again else KEPT):
                self._thread = threading.Thread(target=self._examine, name="outbox-doctor", daemon=True)
                self._thread.start()
        if self.looking:
            self._thread.join(PATIENCE)

    def _examine(self) -> None:
        try:
            self.found, self.failed = examine(self._settings, self._app, deep=True), None
        except Exception as error:
            log.exception("the doctor failed")
            self.failed = f"The doctor failed: {type(error).__name__}. The page's log says why."
        self.at, self._ended = datetime.now(UTC), time.monotonic()


def doctor(visit: Visit) -> Response:
    """The problems. The refresh of the page shows what was found; it does not make the doctor look."""
    found = visit.look("doctor", lambda: Doctor(visit.settings, visit.connections.installed), seconds=math.inf)
    if "hx-request" not in visit.request.headers:
        found.look(again=visit.ask("again") is not None)
    return visit.show("doctor.html", doctor=found, alerts=_alerts(visit))


def _alerts(visit: Visit) -> list[Any] | None:
    """The alerts; None if the database does not answer: the problems say that."""
    try:
        return overview.alerts(visit)
    except OutboxError:
        return None
