"""Wakes the claim after what people do: what became due by that need not wait for beat."""

from __future__ import annotations

from celery.app import app_or_default

from outbox_tasks.settings import Settings
from outbox_tasks.writing.nudge import Nudge, broker_nudge

_nudges: dict[tuple[str | None, int], Nudge | None] = {}


def wake(settings: Settings) -> None:
    """Nudge the claim in the background, after the commit. It waits for no broker and never raises: see `Nudge`."""
    app = app_or_default()
    installed = app if "outbox_relay" in vars(app) else None
    place = settings.broker_url, id(installed)
    if place not in _nudges:
        _nudges[place] = broker_nudge(settings, installed)
    if (nudge := _nudges[place]) is not None:
        nudge()
