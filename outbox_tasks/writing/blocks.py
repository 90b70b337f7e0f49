"""The blocks of `capture` and `direct`, and which of them a call is in.

A call is in the block that its context (of `contextvars`) holds. But some frameworks run each half of a generator, and
the code between the halves, in a context of its own: FastAPI does so with a dependency that is not async. That code
does not see the block that the generator has opened. Its calls are refused: their tasks would be sent at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import CO_GENERATOR
from types import FrameType

from outbox_tasks.errors import CaptureLost
from outbox_tasks.writing.record import Target

THREAD_POOLS = ("anyio", "asyncio", "concurrent", "starlette", "threading")
"""Packages that run functions in threads, in a context for each call."""


class Block:
    """One `with`. `target`: where its tasks go; None: to the broker. `outer`: the block around it."""

    def __init__(self, target: Target | None, outer: Block | None) -> None:
        self.target, self.outer = target, outer
        self.open = True


_block: ContextVar[Block | None] = ContextVar("outbox_block", default=None)

_generators: dict[Block, FrameType] = {}
"""The open blocks of generators that a pool of threads runs, with the frame of the generator."""

_last_outside: tuple[str] | None = None
"""The task of the last call that was sent and in no block. Each call has a tuple of its own, so that calls differ."""


def current() -> Block | None:
    """The block that this code is in."""
    return next((block for block in _upwards() if block.open), None)


def _upwards() -> Iterator[Block]:
    block = _block.get()
    while block is not None:
        yield block
        block = block.outer


@contextmanager
def block(target: Target | None) -> Iterator[None]:
    """Inside, tasks go to `target`: see `Block`. Raises `CaptureLost` if the block ends in another context than it
    began in, and tasks were sent meanwhile: they may have been called inside."""
    opened, last_before = Block(target, current()), _last_outside
    if (generator := _run_by_a_pool(sys._getframe())) is not None:
        _generators[opened] = generator
    _block.set(opened)
    try:
        yield
        sent = _last_outside if _last_outside is not last_before else None
        if target is not None and sent is not None and opened not in _upwards():
            raise CaptureLost(task=sent[0], fate="perhaps sent past the outbox", where="other code")
    finally:
        opened.open = False
        _generators.pop(opened, None)
        _block.set(current())


def check_outside(task: str, *, stored: bool) -> None:
    """Note a call that is in no block. `stored`: whether its task is stored all the same. Raises `CaptureLost` if the
    call may belong to the block of a generator that would do the opposite: send the task, or store it."""
    for block, generator in tuple(_generators.items()):
        # A suspended generator has no caller. Then the code that uses its value may run, and may make this call.
        if generator.f_back is None and stored != (block.target is not None):
            code = generator.f_code
            where = f"the generator {code.co_qualname} ({code.co_filename}, line {generator.f_lineno})"
            raise CaptureLost(task=task, fate="refused", where=where)
    if not stored:
        global _last_outside
        _last_outside = (task,)


def _run_by_a_pool(frame: FrameType | None) -> FrameType | None:
    """The outermost of the generators that the frame is in, if a pool of threads runs it and no code of the application
    does: when the generator yields, its context ends."""
    outermost = None
    while frame is not None and (_package(frame) == "contextlib" or frame.f_code.co_flags & CO_GENERATOR):
        if frame.f_code.co_flags & CO_GENERATOR:
            outermost = frame
        frame = frame.f_back
    return outermost if frame is None or _package(frame) in THREAD_POOLS else None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
