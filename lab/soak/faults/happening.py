"""Makes the planned faults happen, one after the other, and ends those that last."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import psycopg
import redis

from lab.soak.faults import KINDS
from lab.soak.faults.kind import End, Kind, NothingToHurt
from lab.soak.plan import Planned
from lab.soak.stage import Stage
from lab.soak.verdict import Happened

MISSED = (NothingToHurt, psutil.Error, ProcessLookupError, IndexError, psycopg.Error, redis.RedisError)
"""There was nothing that could be hurt: another fault had been faster."""


@dataclass
class _Active:
    kind: Kind
    began: float
    until: float
    end: End


class Happening:
    """Call `go_on` often."""

    def __init__(self, stage: Stage, planned: Sequence[Planned], say: Callable[[str], None], rest: float = 0.0) -> None:
        """With `rest`, a fault is alone: none begins until so many seconds after the end of the one before."""
        self.happened: list[Happened] = []
        self.missed: list[str] = []
        self._stage, self._left, self._say = stage, list(planned), say
        self._active: list[_Active] = []
        self._rest = rest
        self._next = time.monotonic() + (planned[0].pause if planned else 0.0)

    @property
    def over(self) -> bool:
        """Whether all have begun and ended."""
        return not self._left and not self._active

    @property
    def active(self) -> list[str]:
        """The kinds that last just now."""
        return [one.kind.name for one in self._active]

    def go_on(self) -> None:
        """End what has lasted long enough, and begin what is due. If its place is
        taken, it waits, and so do all that follow."""
        for one in [one for one in self._active if one.until <= time.monotonic()]:
            self._end(one)
        if not self._left or time.monotonic() < self._next or (self._rest and self._active):
            return
        kind = KINDS[self._left[0].kind]
        if (kind.place or kind.name) in {one.kind.place or one.kind.name for one in self._active}:
            return
        self._begin(kind, self._left.pop(0))
        if self._left:
            self._next = time.monotonic() + max(self._rest, self._left[0].pause)

    def close(self) -> None:
        """End what still lasts."""
        for one in list(self._active):
            self._end(one)

    def _begin(self, kind: Kind, planned: Planned) -> None:
        began = time.time()
        try:
            end = kind.begin(self._stage, random.Random(planned.chance))
        except MISSED as error:
            self._say(f"{kind.name}: there was nothing to hurt ({type(error).__name__})")
            self.missed.append(kind.name)
            return
        if end is None:
            self._say(kind.name)
            self.happened.append(Happened(kind.name, began, time.time()))
            return
        self._say(f"{kind.name}, for {planned.lasts:.1f} s")
        self._active.append(_Active(kind, began, time.monotonic() + planned.lasts, end))

    def _end(self, one: _Active) -> None:
        self._active.remove(one)
        one.end()
        self._next = max(self._next, time.monotonic() + self._rest)
        self.happened.append(Happened(one.kind.name, one.began, time.time()))
