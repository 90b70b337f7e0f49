"""What a nudge sends to the relay's broker."""

from __future__ import annotations

from celery import Celery

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.broker.places import joined, same_place
from outbox_tasks.per_process import PerProcess
from outbox_tasks.satellites import satellite
from outbox_tasks.settings import Settings
from outbox_tasks.writing.nudge import Nudge, Woken

BROKER_SECONDS = 1.0
"""Seconds that the broker has to answer."""


def broker_nudge(settings: Settings, app: Celery | None = None) -> Nudge | None:
    """The nudge through the relay's broker: that of the settings, else `app`'s. None if there is no broker, or if the
    setting `nudge` is off."""
    if not settings.nudge or (app is None and settings.broker_url is None):
        return None
    # Connects in the nudge's thread, with the first nudge: then the app is configured.
    connected = PerProcess(lambda: _connect(settings, app))

    def wake(targets: set[Woken]) -> None:
        for target in targets:
            _wake(connected.get(), target)

    return Nudge(wake)


def _wake(broker: Broker, target: Woken) -> None:
    match target.kind:
        case "claim":
            broker.wake_claim()
        case "drain":
            broker.wake_drain(target.name)
        case "feed":
            satellite("feeds").wake(broker, target.name)


def _connect(settings: Settings, app: Celery | None) -> Broker:
    url = settings.broker_url
    # If both name the same place, the app knows more: its transport options, such as a prefix of the keys.
    if app is None or not (url is None or same_place(url, joined(app.conf.broker_write_url))):
        app = PinnedCelery("outbox_tasks.nudge", broker=str(url), settings=settings, timeout=BROKER_SECONDS)
    return Broker(app, settings, timeout=BROKER_SECONDS)
