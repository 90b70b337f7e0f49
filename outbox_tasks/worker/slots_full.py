"""A note that the processes of a worker leave to the one that consumes: some destination has all its slots taken."""

from __future__ import annotations

import mmap
import struct
import time

HOLDS = 1.0
"""Seconds for which it holds; whoever still finds no slot then, notes it again."""


class SlotsFull:
    """Made before a fork, and shared by all processes after it."""

    def __init__(self) -> None:
        self._until = mmap.mmap(-1, struct.calcsize("d"))

    def note(self) -> None:
        """There was no slot."""
        self._until[:] = struct.pack("d", time.monotonic() + HOLDS)

    @property
    def noted(self) -> bool:
        """Whether there was none a moment ago."""
        [until] = struct.unpack("d", self._until[:])
        return time.monotonic() < float(until)
