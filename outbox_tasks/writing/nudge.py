"""The nudge: what a process sends to the broker after a commit, in the background, so that its messages need not wait.

A thread of its own talks to the broker, with short timeouts. The committing thread does not wait for it: a dead or slow
broker costs it nothing. If a nudge is lost, beat wakes the claim, or the task of the feed, a moment later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import Literal, NamedTuple

from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.per_process import PerProcess
from outbox_tasks.text import logger

log = logger(__name__)

PAUSE_SECONDS = 0.015
"""Between two nudges at least: the commits in between share the second one. Each wakes a claim, which costs as much CPU
as two messages."""

PAUSE_SECONDS_WITHOUT_BROKER = 1.0
"""After a nudge that the broker did not take."""

CALLS_AT_MOST = 100
"""More calls than these are forgotten: one is as good as many."""

COMMIT_SECONDS = 0.1
"""How long a nudge waits for a commit that is under way. It looks every half millisecond whether that has ended."""

EXIT_SECONDS = 1.0
"""How long the end of a program waits for the nudge of its last commits."""


class Woken(NamedTuple):
    """What a nudge wakes: a feed's task, a drain of a destination, or, without a name, the claim."""

    kind: Literal["claim", "drain", "feed"]
    name: str = ""


CLAIM = Woken("claim")


class _Call(NamedTuple):
    after: Callable[[], bool] | None
    target: Woken
    until: float
    """When to wait no longer for `after`."""

    def is_ready(self) -> bool:
        return self.after is None or self.after() or time.monotonic() > self.until


Calls = SimpleQueue[_Call]

END = _Call(lambda: False, CLAIM, inf)
"""The program ends. It is never ready: once it alone waits, all nudges from before the end have been sent."""


class Nudge:
    """Wakes the claim, drains or the tasks of feeds, soon after it is called. Many calls make one nudge."""

    def __init__(self, wake: Callable[[set[Woken]], object]) -> None:
        """`wake` gets what was asked for. It may raise `BrokerUnreachable`."""
        self._wake = wake
        self._calls = PerProcess(self._start)
        self._nudges: dict[Woken, Callable[..., object]] = {}

    def __call__(self, after: Callable[[], bool] | None = None, target: Woken = CLAIM) -> None:
        """Ask for a nudge once `after` is true. Returns at once; never raises."""
        try:
            calls = self._calls.get()
        except RuntimeError as error:  # no thread starts while Python ends
            log.debug("nudge lost: %s", error)
            return
        if calls.qsize() < CALLS_AT_MOST:
            calls.put(_Call(after, target, time.monotonic() + COMMIT_SECONDS))

    def of(self, target: Woken) -> Callable[..., object]:
        """What to call after a commit, to wake something else than the claim; always the same for the same target."""
        return self._nudges.setdefault(target, partial(self, target=target))

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
            waiting += _taken(calls, 0.0005 if waiting else None)
            if ready := [call for call in waiting if call.is_ready()]:
                waiting = [call for call in waiting if call not in ready]
                time.sleep(self._nudge({call.target for call in ready}))

    def _nudge(self, targets: set[Woken]) -> float:
        """Returns the seconds until the next time."""
        try:
            self._wake(targets)
            return PAUSE_SECONDS
        except BrokerUnreachable as error:
            log.debug("nudge lost: %s", error)
        except Exception:
            log.exception("nudge failed")
        return PAUSE_SECONDS_WITHOUT_BROKER


def _taken(calls: Calls, timeout: float | None) -> Iterator[_Call]:
    """The calls that are there. It waits for the first one."""
    with suppress(Empty):
        yield calls.get(timeout=timeout)
        while True:
            yield calls.get_nowait()
