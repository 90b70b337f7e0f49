"""A note from a worker's pool to its main process, which consumes: all slots of some destination are taken."""

from __future__ import annotations

import mmap
import struct
import time

HOLDS = 1.0
"""Seconds for which a note holds. A process that still finds no slot then notes it again."""


class SlotsFull:
    """Made before the pool forks, and shared by all its processes."""

    def __init__(self) -> None:
        self._until = mmap.mmap(-1, struct.calcsize("d"))

    def note(self) -> None:
        """Note that there was no slot."""
        self._until[:] = struct.pack("d", time.monotonic() + HOLDS)

    @property
    def noted(self) -> bool:
        """Whether there was no slot a moment ago."""
        [until] = struct.unpack("d", self._until[:])
        return time.monotonic() < float(until)
