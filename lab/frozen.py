"""Processes that stand still: their host still takes connections and data for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


def freeze(pid: int) -> list[psutil.Process]:
    """SIGSTOP to a process and all below it. Those that were stopped, for `thaw`."""
    first = psutil.Process(pid)
    first.suspend()  # the first one first: it makes no more of them
    stopped = [first]
    for process in first.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            stopped.append(process)
    return stopped


def thaw(stopped: list[psutil.Process]) -> None:
    """They go on, if they still are."""
    for process in reversed(stopped):
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Inside, a process and all below it do nothing."""
    stopped = freeze(pid)
    try:
        yield
    finally:
        thaw(stopped)
