"""The blocks of `capture` and `direct`, and which of them a call is in.

A call is in the block that its context (of `contextvars`) holds. But some frameworks run each half of a generator, and
the code between the halves, in a context of its own: FastAPI does so with a dependency that is not async. That code
does not see the block that the generator has opened. The end of the block raises an error then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from outbox_tasks.errors import CaptureLost
from outbox_tasks.writing.record import Target


class Block:
    """One `with`. `target`: where its tasks go; None: to the broker. `outer`: the block around it."""

    def __init__(self, target: Target | None, outer: Block | None) -> None:
        self.target, self.outer = target, outer
        self.open = True


_block: ContextVar[Block | None] = ContextVar("outbox_block", default=None)


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
    began in: the calls between did not see it."""
    opened = Block(target, current())
    _block.set(opened)
    try:
        yield
        if opened not in _upwards():
            raise CaptureLost
    finally:
        opened.open = False
        _block.set(current())  # this context no longer holds the session of the block
