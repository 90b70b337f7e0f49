"""`PerProcess`, with real forks and threads."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox_tasks.per_process import PerProcess


def in_child(check: Callable[[], None]) -> None:
    """Run `check` in a forked process."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_value_is_made_once_and_anew_if_it_was_taken_or_could_not_be_made() -> None:
    attempts: list[type[Exception] | None] = [ZeroDivisionError, None, None]

    def make() -> object:
        if error := attempts.pop(0):
            raise error
        return object()

    held = PerProcess(make)
    with pytest.raises(ZeroDivisionError):
        held.get()
    assert held.made is None
    value = held.get()
    assert held.get() is held.made is held.take() is value
    assert held.made is held.take() is None
    assert held.get() is not value


def test_threads_that_ask_at_the_same_time_share_one_value() -> None:
    start = threading.Barrier(8)
    made: list[object] = []
    two_made = threading.Event()

    def make() -> object:
        made.append(object())
        if len(made) > 1:
            two_made.set()
        two_made.wait(0.1)  # so that another thread that does not wait for this one makes a value too
        return made[-1]

    held = PerProcess(make)

    def ask(_: int) -> object:
        start.wait(30)
        return held.get()

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == set(made)
    assert len(made) == 1


def test_each_process_has_its_own_value() -> None:
    held = PerProcess(os.getpid)
    assert held.get() == os.getpid()

    def check() -> None:
        assert held.made is held.take() is None
        assert held.get() == os.getpid()
        in_child(lambda: None if held.get() == os.getpid() else os.abort())

    in_child(check)
    assert held.made == os.getpid()


class Closing:
    """Tells when it is destroyed."""

    def __init__(self, closed: list[int]) -> None:
        self._closed = closed

    def __del__(self) -> None:
        self._closed.append(os.getpid())


def test_a_child_abandons_its_parents_value_once_and_does_not_destroy_it() -> None:
    closed: list[int] = []
    abandoned: list[Closing] = []
    held = [PerProcess(lambda: Closing(closed), abandoned.append)]
    parent = held[0].get()

    def check() -> None:
        assert held[0].get() is held[0].get() is not parent
        assert abandoned == [parent]
        held.clear()
        assert len(closed) == 1, "only its own"

    in_child(check)
    assert (closed, abandoned) == ([], [])


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    parent, making, go_on = os.getpid(), threading.Event(), threading.Event()

    def make() -> int:
        if os.getpid() == parent:
            making.set()
            go_on.wait(60)
        return os.getpid()

    held = PerProcess(make)
    thread = threading.Thread(target=held.get)
    thread.start()
    try:
        assert making.wait(30)
        in_child(lambda: None if held.get() == os.getpid() else os.abort())
    finally:
        go_on.set()
        thread.join()
    assert held.made == parent
