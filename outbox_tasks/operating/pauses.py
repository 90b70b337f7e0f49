"""Pause and resume a destination. The audit records each act, with who and why."""

from __future__ import annotations

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.wake import wake


def pause(database: Database, destination: str, who: str, why: str | None) -> None:
    """Send nothing to a destination until `resume`."""
    database.ask("audit/pause.sql", destination=destination, person=who, reason=why)


def resume(database: Database, destination: str, who: str, why: str | None = None) -> bool:
    """End a pause, and close the breaker. Returns whether the destination was paused or had failed."""
    resumed = bool(database.ask("audit/resume.sql", destination=destination, person=who, reason=why))
    if resumed:
        wake(database.settings)
    return resumed
