"""The nudge: what a process does at the broker after a commit, in the background.

It wakes the claim, or sends the publish tasks of messages that the writer leased (see `direct`). Its own thread talks
to the broker, with short timeouts. The committing thread does not wait for it: a dead or slow broker costs it nothing.
If a nudge is lost, beat wakes the claim a moment later. A program that ends waits for its thread, but not for long.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  redis imports it, which Python refuses once a program has begun to end
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue

from celery import Celery

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.feeds import wake_feed
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.broker.places import joined, same_place
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.text import logger
from outbox_tasks.writing.direct import Dispatch, Grants

log = logger(__name__)

PAUSE, BUSY_PAUSE = 0.005, 0.02
"""Seconds between two nudges at least: the commits in between share the second one. The longer pause follows if a claim
waits already, because the claim has much to do."""

WAKE_EVERY = 1.0
"""Seconds after which a task that is sent directly is followed by a nudge: beat may be gone, and others be due."""

CALM = 0.05
"""Seconds after such a task before that nudge: a claim meanwhile could slow it."""

BROKEN_PAUSE = 1.0
"""The same while the broker does not answer."""

ENOUGH = 100
"""Calls that are kept at most; one is as good as many."""

PATIENCE = 0.1
"""Seconds to wait for a commit in progress."""

POLL = 0.0005
"""Seconds between two looks at whether a commit has ended."""

SLOW_POLL = 0.01
"""The same for one that takes long."""

TIMEOUT = 1.0
"""Seconds that the broker has to answer."""

AT_EXIT = 1.0
"""Seconds that a program's end may wait for what its last commits have asked for."""

LONG, SHORT = 10, 3
"""If more than `LONG` tasks wait for the publish workers, messages go by the claim until no more than `SHORT` do. They
also do while the claim says that older ones wait."""

CHECK, CALM_CHECK = 0.1, 1.0
"""Seconds between two looks at that: while it sends tasks, and while it wakes the claim."""


@dataclass(frozen=True, slots=True)
class _Call:
    after: Callable[[], bool] | None
    dispatch: Dispatch | None
    at: float
    ended: threading.Event | None = None
    """The program ends, and waits for this: it asks for nothing more."""

    def is_ready(self, now: float) -> bool:
        """Whether the commit has ended, or has been waited for long enough. A nudge does not wait for long. A task that
        came too early would be dropped."""
        if self.after is None or self.after():
            return True
        return now > (self.at + PATIENCE if self.dispatch is None else self.dispatch.until)


Wanted = SimpleQueue[_Call]


class Nudge:
    """Wakes the claim, or sends publish tasks, soon after it is called. Many calls make one nudge."""

    def __init__(
        self,
        wake: Callable[[], object],
        send: Callable[[Sequence[Dispatch]], object] = lambda dispatches: None,
        grants: Grants | None = None,
    ) -> None:
        """`wake` returns False if a claim waits already. Both functions may raise `BrokerUnreachable`. Without `grants`
        there are no dispatches."""
        self._wake, self._send = wake, send
        self.grants = grants
        self._broken = False
        self._wanted = PerProcess(self._start)

    def __call__(self, after: Callable[[], bool] | None = None, dispatch: Dispatch | None = None) -> None:
        """Ask for a nudge, or for this dispatch, once `after` is true. Returns at once; never raises."""
        try:
            wanted = self._wanted.get()
        except RuntimeError as error:  # no thread starts while Python ends; such a process has leased nothing
            log.debug("nudge lost: %s", error)
            return
        if dispatch is not None or wanted.qsize() < ENOUGH:
            wanted.put(_Call(after, dispatch, time.monotonic()))

    def _start(self) -> Wanted:
        wanted: Wanted = SimpleQueue()
        threading.Thread(target=self._run, args=(wanted,), name="outbox-nudge", daemon=True).start()
        # Not `atexit`, which the children of `multiprocessing` skip. It comes after the program's own exit functions.
        Finalize(None, self._end, (wanted,), exitpriority=0)
        return wanted

    def _end(self, wanted: Wanted) -> None:
        """The program ends, and with it the thread: wait for what was asked for. From now on all goes by the claim."""
        self.grants = None
        ended = threading.Event()
        wanted.put(_Call(None, None, time.monotonic(), ended))
        ended.wait(AT_EXIT)

    def _run(self, wanted: Wanted) -> None:
        waiting: list[_Call] = []
        ending: list[threading.Event] = []
        owed: float | None = None  # when to wake the claim
        woken, rests_until = -WAKE_EVERY, 0.0
        while True:
            waiting += _calls(wanted, _timeout(waiting, None if owed is None else max(owed, rests_until)))
            now = time.monotonic()
            ready = [call for call in waiting if call.is_ready(now)]
            waiting = [call for call in waiting if call not in ready]
            dispatches = [call.dispatch for call in ready if call.dispatch is not None]
            direct = [] if self._broken else [each for each in dispatches if now < each.until]
            if direct and not self._do(partial(self._send, direct)):
                owed, rests_until = now, time.monotonic() + BROKEN_PAUSE
            ending += [call.ended for call in ready if call.ended is not None]
            asked = [call for call in ready if call.ended is None]
            if len(direct) < len(dispatches) or any(call.dispatch is None or call.dispatch.nudge for call in asked):
                owed = now
            elif direct and owed is None:
                owed = max(woken + WAKE_EVERY, now + CALM)
            at_once = ending and not waiting
            if owed is not None and (at_once or time.monotonic() >= max(owed, rests_until)):
                owed, woken = None, time.monotonic()
                rests_until = time.monotonic() + self._nudge()
            while at_once and ending:
                ending.pop().set()

    def _nudge(self) -> float:
        """Wake the claim. Returns the seconds until the next time."""
        sent: list[object] = []
        if not self._do(lambda: sent.append(self._wake())):
            return BROKEN_PAUSE
        return BUSY_PAUSE if sent == [False] else PAUSE

    def _do(self, work: Callable[[], object]) -> bool:
        """Whether it worked. While the broker does not answer, nothing is sent directly."""
        try:
            work()
        except BrokerUnreachable as error:
            log.debug("nudge lost: %s", error)
            self._broken = True
        except Exception:
            log.exception("nudge failed")
            self._broken = True
        else:
            self._broken = False
        if (grants := self.grants) is not None:
            grants.note(answers=not self._broken)
        return not self._broken


def _timeout(waiting: Sequence[_Call], rests_until: float | None) -> float | None:
    """Seconds until there may be something to do, though nobody calls."""
    now = time.monotonic()
    if waiting:
        return POLL if now < waiting[-1].at + PATIENCE else SLOW_POLL
    return None if rests_until is None else max(0.0, rests_until - now)


def _calls(wanted: Wanted, timeout: float | None) -> Iterator[_Call]:
    """The calls that are there; waits for the first one."""
    with suppress(Empty):
        yield wanted.get(timeout=timeout)
        while True:
            yield wanted.get_nowait()


class FeedNudge:
    """Sends the tasks of feeds soon after it is called: one thread for all feeds of a process."""

    def __init__(self, wake: Callable[[str], object]) -> None:
        """`wake` returns False if a task of this feed waits already."""
        self._wake_feed = wake
        self._ready: set[str] = set()
        self._nudge = Nudge(self._wake)

    def of(self, name: str) -> Callable[..., object]:
        """What to call after the commit of a transaction that wrote to a feed."""
        return _NudgeOf(self, name)

    def ask(self, name: str, after: Callable[[], bool] | None) -> None:
        """Ask for the task of a feed, once `after` is true."""

        def noted() -> bool:
            if after is not None and not after():
                return False
            self._ready.add(name)
            return True

        self._nudge(noted)

    def _wake(self) -> bool:
        sent = False
        while self._ready:
            sent = self._wake_feed(self._ready.pop()) is not False or sent
        return sent


@dataclass(frozen=True, slots=True)
class _NudgeOf:
    """Two of the same feed are equal, so a transaction calls it once."""

    nudge: FeedNudge
    name: str

    def __call__(self, after: Callable[[], bool] | None = None) -> None:
        self.nudge.ask(self.name, after)


def feed_nudge(settings: Settings, app: Celery | None = None) -> FeedNudge | None:
    """As `broker_nudge`, for feeds."""
    if not settings.nudge or (app is None and settings.broker_url is None):
        return None
    broker = PerProcess(lambda: _connect(settings, app))
    return FeedNudge(lambda name: wake_feed(broker.get(), name))


def broker_nudge(settings: Settings, app: Celery | None = None) -> Nudge | None:
    """The nudge through the relay's broker: that of the settings, else `app`'s. None if there is no broker, or if the
    setting `nudge` is off."""
    if not settings.nudge or (app is None and settings.broker_url is None):
        return None
    # Connects in the nudge's thread, with the first nudge: then the app is configured.
    broker = PerProcess(lambda: _connect(settings, app))
    grants = Grants() if settings.direct else None
    line = _Line(settings, broker, grants)
    return Nudge(line.wake, line.send, grants)


class _Line:
    """Wakes the claim, sends publish tasks, and looks now and then whether older messages wait."""

    def __init__(self, settings: Settings, broker: PerProcess[Broker], grants: Grants | None) -> None:
        self._settings, self._broker, self._grants = settings, broker, grants
        self._looked = 0.0

    def wake(self) -> bool:
        """Wake the claim. Returns False if one waits already."""
        broker = self._broker.get()
        sent = broker.wake_claim()
        self._look(broker, CALM_CHECK)
        return sent

    def send(self, dispatches: Sequence[Dispatch]) -> None:
        """Send the tasks of these dispatches."""
        broker = self._broker.get()
        broker.send([bundle for dispatch in dispatches for bundle in dispatch.bundles])
        self._look(broker, CHECK)

    def _look(self, broker: Broker, every: float) -> None:
        now = time.monotonic()
        if self._grants is not None and now > self._looked + every:
            self._looked = now
            most = SHORT if self._grants.paused else LONG
            self._grants.paused = broker.waiting() > most * self._settings.bundle_size or broker.is_behind()


def _connect(settings: Settings, app: Celery | None) -> Broker:
    url = settings.broker_url
    # If both name the same place, the app knows more: its transport options, such as a prefix of the keys.
    if app is None or not (url is None or same_place(url, joined(app.conf.broker_write_url))):
        app = PinnedCelery("outbox_tasks.nudge", broker=str(url), settings=settings, timeout=TIMEOUT)
    return Broker(app, settings, timeout=TIMEOUT)
