"""The nudge: a best-effort wake-up of the claim after a commit, in the background.

Its own thread talks to the broker, with short timeouts. The committing thread does not wait for it, so a dead or slow
broker costs it nothing. If a nudge is lost, beat wakes the claim a moment later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from celery import Celery

from outbox_tasks.broker.broker import Broker, same_place
from outbox_tasks.broker.pinned import PinnedCelery, joined
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.per_process import PerProcess
from outbox_tasks.redaction import logger
from outbox_tasks.settings import Settings

log = logger(__name__)

PAUSE = 0.02
"""Seconds between two nudges at least: the commits in between share the second one."""

BROKEN_PAUSE = 1.0
"""The same while the broker does not answer."""

ENOUGH = 100
"""Calls that are kept at most; one is as good as many."""

PATIENCE = 0.1
"""Seconds to wait for a commit in progress."""

TIMEOUT = 1.0
"""Seconds that the broker has to answer."""

Wanted = SimpleQueue[Callable[[], bool] | None]
"""Calls of a nudge: each with the condition that it waits for, if any."""


class Nudge:
    """Wakes the claim soon after it is called; many calls make one nudge."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._wanted = PerProcess(self._start)

    def __call__(self, after: Callable[[], bool] | None = None) -> None:
        """Ask for a nudge, once `after` is true (or soon anyway). Returns at once; never raises."""
        wanted = self._wanted.get()
        if wanted.qsize() < ENOUGH:
            wanted.put(after)

    def _start(self) -> Wanted:
        wanted: Wanted = SimpleQueue()
        threading.Thread(target=self._run, args=(wanted,), name="outbox-nudge", daemon=True).start()
        return wanted

    def _run(self, wanted: Wanted) -> None:
        while True:
            waits = [wanted.get()]
            while not wanted.empty():
                waits.append(wanted.get())
            _wait_for([after for after in waits if after is not None])
            pause = PAUSE
            try:
                self._wake()
            except BrokerUnreachable as error:
                log.debug("nudge lost: %s", error)
                pause = BROKEN_PAUSE
            except Exception:
                log.exception("nudge failed")
                pause = BROKEN_PAUSE
            time.sleep(pause)


def _wait_for(conditions: list[Callable[[], bool]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(condition() for condition in conditions) and time.monotonic() < deadline:
        time.sleep(0.0005)


def broker_nudge(settings: Settings, app: Celery | None = None) -> Nudge | None:
    """The nudge through the relay's broker: that of the settings, else `app`'s. None if there is no broker, or if the
    setting `nudge` is off."""
    if not settings.nudge or (app is None and settings.broker_url is None):
        return None
    # Connects in the nudge's thread, with the first nudge: then the app is configured.
    broker = PerProcess(lambda: _connect(settings, app))
    return Nudge(lambda: broker.get().wake_claim())


def _connect(settings: Settings, app: Celery | None) -> Broker:
    url = settings.broker_url
    # If both name the same place, the app knows more: its transport options, such as a prefix of the keys.
    if app is None or not (url is None or same_place(url, joined(app.conf.broker_write_url))):
        app = PinnedCelery("outbox_tasks.nudge", broker=str(url), settings=settings, timeout=TIMEOUT)
    return Broker(app, settings, timeout=TIMEOUT)
