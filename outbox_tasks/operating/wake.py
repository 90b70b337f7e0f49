"""Wakes the claim after acts of people: a message that became due by one does not wait for beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_tasks.settings import Settings

if TYPE_CHECKING:
    from outbox_tasks.writing.nudge import Nudge

_nudges: dict[tuple[str | None, int], Nudge | None] = {}


def wake(settings: Settings) -> None:
    """Nudge the claim in the background; call this after the commit. It waits for no broker, and never raises: see
    `Nudge`."""
    from celery.app import app_or_default  # here: the commands that only look need no Celery

    from outbox_tasks.writing.broker_nudge import broker_nudge

    app = app_or_default()
    installed = app if "outbox_relay" in vars(app) else None
    place = settings.broker_url, id(installed)
    if place not in _nudges:
        _nudges[place] = broker_nudge(settings, installed)
    if (nudge := _nudges[place]) is not None:
        nudge()
