"""What the user asks of a soak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STANDBY, PGBOUNCER, SMALL_DISK = EXTRAS = ("standby", "pgbouncer", "small-disk")

RATE = 150.0
"""Messages a second that the application writes, unless you say another number."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seed: int
    minutes: float
    directory: Path
    rate: float
    short_leases: bool = False
    may_flush: bool = False
    every: float | None = None
    extras: tuple[str, ...] = ()
    """What stands around the soak's own database."""
    alone: bool = False
    """One fault at a time, each after the one before is over and forgotten."""
    only: tuple[str, ...] = ()
    """These kinds of faults; empty: all."""
