"""The nudge: what it asks for, once for many calls, and what it does if a commit or the broker takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from math import inf
from queue import SimpleQueue
from typing import Any

import pytest

from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.writing.nudge import (
    CALLS_AT_MOST,
    CLAIM,
    COMMIT_SECONDS,
    END,
    PAUSE_SECONDS,
    PAUSE_SECONDS_WITHOUT_BROKER,
    Calls,
    Nudge,
    Woken,
    _Call,
)
from tests.conftest import eventually

ORDERS, SHOP = Woken("drain", "orders"), Woken("feed", "shop")


@pytest.fixture
def woken() -> list[set[Woken]]:
    return []


@pytest.fixture
def nudge(woken: list[set[Woken]]) -> Nudge:
    return Nudge(woken.append)


def test_it_wakes_what_was_asked_for(nudge: Nudge, woken: list[set[Woken]]) -> None:
    nudge()
    nudge.of(ORDERS)()
    nudge.of(SHOP)()
    eventually(lambda: set().union(*woken) == {CLAIM, ORDERS, SHOP})
    assert nudge.of(ORDERS) is nudge.of(ORDERS)  # so that a transaction notes it once


def test_it_waits_for_the_commit_and_not_for_ever(nudge: Nudge, woken: list[set[Woken]]) -> None:
    committed = threading.Event()
    nudge(committed.is_set, ORDERS)
    nudge(lambda: True, SHOP)
    eventually(lambda: woken == [{SHOP}])
    committed.set()
    eventually(lambda: woken == [{SHOP}, {ORDERS}])
    began = time.monotonic()
    nudge(lambda: False, SHOP)
    eventually(lambda: len(woken) == 3)
    assert time.monotonic() - began >= COMMIT_SECONDS


def test_without_a_thread_no_commit_fails(
    nudge: Nudge, woken: list[set[Woken]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as end:  # of Python, or of the system's room for threads
        end.setattr(threading.Thread, "start", lambda *_: _fail(RuntimeError("can't start new thread")))
        nudge()
    nudge()
    eventually(lambda: woken == [{CLAIM}])


def test_the_end_of_a_program_waits_for_a_commit_that_is_under_way(nudge: Nudge, woken: list[set[Woken]]) -> None:
    calls: Calls = SimpleQueue()
    calls.put(_Call(iter([False, True]).__next__, ORDERS, inf))
    calls.put(END)
    nudge._run(calls)
    assert woken == [{ORDERS}]


def test_many_at_once_become_few_and_a_failure_stops_none(woken: list[set[Woken]]) -> None:
    wakes: list[float] = []

    def wake(_: object) -> None:
        wakes.append(time.monotonic())
        if len(wakes) == 1:
            raise RuntimeError

    nudge = Nudge(wake)
    began = time.monotonic()
    for _ in range(1000):
        nudge()
    eventually(lambda: wakes)
    nudge()
    eventually(lambda: len(wakes) >= 2)
    assert len(wakes) <= 3 + (time.monotonic() - began) / PAUSE_SECONDS
    assert all(later - earlier >= PAUSE_SECONDS for earlier, later in pairwise(wakes))


def test_more_calls_than_one_nudge_needs_are_forgotten() -> None:
    begun, ends = threading.Event(), threading.Event()
    woken: list[Any] = []

    def wake(targets: set[Woken]) -> None:
        woken.append(targets)
        begun.set()
        assert ends.wait(30)

    nudge = Nudge(wake)
    nudge()
    assert begun.wait(30)  # from now on nobody takes calls
    for _ in range(3 * CALLS_AT_MOST):
        nudge()
    assert nudge._calls.get().qsize() <= CALLS_AT_MOST
    ends.set()
    eventually(lambda: len(woken) == 2)


@pytest.mark.parametrize(
    ("wake", "pause"),
    [
        (lambda targets: None, PAUSE_SECONDS),
        (lambda targets: _fail(BrokerUnreachable(url="redis://h", reason="it is away")), PAUSE_SECONDS_WITHOUT_BROKER),
        (lambda targets: _fail(ZeroDivisionError()), PAUSE_SECONDS_WITHOUT_BROKER),
    ],
    ids=["well", "no broker", "a mistake"],
)
def test_after_a_failure_the_pause_is_longer(wake: Callable[[Any], object], pause: float) -> None:
    assert Nudge(wake)._nudge({CLAIM}) == pause


def _fail(error: Exception) -> None:
    raise error
