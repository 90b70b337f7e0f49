"""The blocks of `capture` and `direct`, and which of them a call is in.

The context (of `contextvars`) in which the `with` runs says that. But some frameworks run the halves of a generator,
and the code in between, in contexts of their own: FastAPI does so with a dependency that is not async. The code in
between then does not see the block that the generator has opened, so its calls are refused rather than sent at once.
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

POOLS = ("anyio", "asyncio", "concurrent", "starlette", "threading")
"""Packages that run functions in threads, in a context for each call."""


class Block:
    """One `with`. `target`: where its tasks go; None: to the broker."""

    def __init__(self, target: Target | None, outer: Block | None) -> None:
        self.target, self.outer = target, outer
        self.open = True


_block: ContextVar[Block | None] = ContextVar("outbox_block", default=None)

_by_generators: dict[Block, FrameType] = {}
"""The open blocks of generators that a pool of threads runs, each with the generator's frame."""

_outside: tuple[str] | None = None
"""The task that was sent last by a call in no block: a tuple of its own for each call."""


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
    """Inside, tasks go to `target`: see `Block`. Raises `CaptureLost` if this ends in another context than it began in,
    and tasks were sent meanwhile that may have been called inside."""
    made, before = Block(target, current()), _outside
    if (generator := _run_by_a_pool(sys._getframe())) is not None:
        _by_generators[made] = generator
    _block.set(made)
    try:
        yield
        if target is not None and made not in _upwards() and _outside is not None and _outside is not before:
            raise CaptureLost(task=_outside[0], fate="perhaps sent past the outbox", where="other code")
    finally:
        made.open = False
        _by_generators.pop(made, None)
        _block.set(current())


def check_outside(task: str, *, stored: bool) -> None:
    """Note a call that is in no block. Raises `CaptureLost` if it may belong into one that it can't see, where other
    would become of it."""
    for block, generator in tuple(_by_generators.items()):
        # A generator that is suspended has no caller. Then code runs that uses what it has yielded.
        if generator.f_back is None and stored != (block.target is not None):
            code = generator.f_code
            where = f"the generator {code.co_qualname} ({code.co_filename}, line {generator.f_lineno})"
            raise CaptureLost(task=task, fate="refused", where=where)
    if not stored:
        global _outside
        _outside = (task,)


def _run_by_a_pool(frame: FrameType | None) -> FrameType | None:
    """The outermost of the generators that the frame is in, if no code of the application runs them: when they yield,
    their context is over."""
    outermost = None
    while frame is not None and (_package(frame) == "contextlib" or frame.f_code.co_flags & CO_GENERATOR):
        if frame.f_code.co_flags & CO_GENERATOR:
            outermost = frame
        frame = frame.f_back
    return outermost if frame is None or _package(frame) in POOLS else None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
