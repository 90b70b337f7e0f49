"""The nudge: what a process sends to the broker after a commit, in the background, so that its messages need not wait.

A thread of its own talks to the broker, with short timeouts. The committing thread does not wait for it: a dead or slow
broker costs it nothing. If a nudge is lost, beat wakes the claim, or the task of the feed, a moment later.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  redis imports it, which Python refuses once a program has begun to end
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import NamedTuple

from celery import Celery

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.feeds import wake_feed
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.broker.places import joined, same_place
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.text import logger

log = logger(__name__)

PAUSE, BUSY_PAUSE, BROKEN_PAUSE = 0.005, 0.02, 1.0
"""Seconds between two nudges at least: the commits in between share the second one. The second pause follows if a task
waits already, because the relay has much to do; the third one while the broker does not answer."""

MOST_CALLS = 100
"""Calls that are kept at most; one is as good as many."""

COMMIT_SECONDS, POLL_SECONDS = 0.1, 0.0005
"""How long a nudge waits for a commit in progress, and how often it looks whether that has ended."""

BROKER_SECONDS, EXIT_SECONDS = 1.0, 1.0
"""Seconds that the broker has to answer, and that a program's end waits for the nudge of its last commits."""


class _Call(NamedTuple):
    after: Callable[[], bool] | None
    feed: str | None
    until: float
    """When to wait no longer for `after`."""

    def is_ready(self) -> bool:
        return self.after is None or self.after() or time.monotonic() > self.until


Calls = SimpleQueue[_Call]

END = _Call(lambda: False, None, inf)
"""The program ends: nothing is asked for after this."""


class Nudge:
    """Wakes the claim, or the tasks of feeds, soon after it is called. Many calls make one nudge."""

    def __init__(self, wake: Callable[[set[str]], object]) -> None:
        """`wake` gets the names of the feeds that were asked for. It returns False if all that it would send waits
        already, and may raise `BrokerUnreachable`."""
        self._wake = wake
        self._calls = PerProcess(self._start)
        self._feeds: dict[str, Callable[..., object]] = {}

    def __call__(self, after: Callable[[], bool] | None = None, feed: str | None = None) -> None:
        """Ask for a nudge once `after` is true. Returns at once; never raises."""
        try:
            calls = self._calls.get()
        except RuntimeError as error:  # no thread starts while Python ends
            log.debug("nudge lost: %s", error)
            return
        if calls.qsize() < MOST_CALLS:
            calls.put(_Call(after, feed, time.monotonic() + COMMIT_SECONDS))

    def of(self, feed: str) -> Callable[..., object]:
        """What to call after the commit of a transaction that wrote to a feed; always the same for the same feed."""
        return self._feeds.setdefault(feed, partial(self, feed=feed))

    def _start(self) -> Calls:
        calls: Calls = SimpleQueue()
        thread = threading.Thread(target=self._run, args=(calls,), name="outbox-nudge", daemon=True)
        thread.start()

        def end() -> None:
            calls.put(END)
            thread.join(EXIT_SECONDS)

        # Not `atexit`, which the children of `multiprocessing` skip. It comes after the program's own exit functions.
        Finalize(None, end, exitpriority=0)
        return calls

    def _run(self, calls: Calls) -> None:
        waiting: list[_Call] = []
        while waiting != [END]:
            waiting += _taken(calls, POLL_SECONDS if waiting else None)
            if ready := [call for call in waiting if call.is_ready()]:
                waiting = [call for call in waiting if call not in ready]
                time.sleep(self._nudge({call.feed for call in ready if call.feed is not None}))

    def _nudge(self, feeds: set[str]) -> float:
        """Returns the seconds until the next time."""
        try:
            return BUSY_PAUSE if self._wake(feeds) is False else PAUSE
        except BrokerUnreachable as error:
            log.debug("nudge lost: %s", error)
        except Exception:
            log.exception("nudge failed")
        return BROKEN_PAUSE


def _taken(calls: Calls, timeout: float | None) -> Iterator[_Call]:
    """The calls that are there. It waits for the first one."""
    with suppress(Empty):
        yield calls.get(timeout=timeout)
        while True:
            yield calls.get_nowait()


def broker_nudge(settings: Settings, app: Celery | None = None) -> Nudge | None:
    """The nudge through the relay's broker: that of the settings, else `app`'s. It wakes the tasks of the feeds that it
    is asked for, else the claim. None if there is no broker, or if the setting `nudge` is off."""
    if not settings.nudge or (app is None and settings.broker_url is None):
        return None
    # Connects in the nudge's thread, with the first nudge: then the app is configured.
    connected = PerProcess(lambda: _connect(settings, app))

    def wake(feeds: set[str]) -> bool:
        broker = connected.get()
        sent = [wake_feed(broker, feed) for feed in feeds] or [broker.wake_claim()]
        return any(sent)

    return Nudge(wake)


def _connect(settings: Settings, app: Celery | None) -> Broker:
    url = settings.broker_url
    # If both name the same place, the app knows more: its transport options, such as a prefix of the keys.
    if app is None or not (url is None or same_place(url, joined(app.conf.broker_write_url))):
        app = PinnedCelery("outbox_tasks.nudge", broker=str(url), settings=settings, timeout=BROKER_SECONDS)
    return Broker(app, settings, timeout=BROKER_SECONDS)
