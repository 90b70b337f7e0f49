"""Which faults happen, and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

BRIEF, LONG = (0.05, 0.4), (1.0, 1.3)
"""How long a fault lasts, in leases of a begun send: most end long before the lease, every fourth one after it."""


@dataclass(frozen=True)
class Planned:
    """One fault that is to happen."""

    pause: float
    """Seconds after the one before has begun."""
    kind: str
    lasts: float
    """Seconds; kinds that are over at once ignore it."""
    chance: int
    """The seed of whatever the fault chooses: which worker, which connection."""


def plan(seed: int, seconds: float, kinds: Sequence[str], lease: float, every: float) -> list[Planned]:
    """The faults of a run that lasts so many seconds, one about `every` so many. Each kind comes once before one comes
    again."""
    chance = random.Random(seed)
    planned: list[Planned] = []
    remaining: list[str] = []
    passed = 0.0
    while kinds:
        remaining = remaining or chance.sample(kinds, len(kinds))
        pause = round(chance.uniform(0.5, 1.5) * every, 3)
        passed += pause
        if passed > seconds:
            break
        lasts = round(chance.uniform(*(LONG if chance.random() < 0.25 else BRIEF)) * lease, 3)
        planned.append(Planned(pause, remaining.pop(), lasts, chance.getrandbits(32)))
    return planned
