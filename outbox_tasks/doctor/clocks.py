"""Whose clock differs from ours."""

from __future__ import annotations

import time
from collections.abc import Callable

from outbox_tasks.doctor.finding import Finding, Fine, error, warning
from outbox_tasks.settings import Settings

ASKED = 3
"""The answer that came fastest tells best."""


def compared(settings: Settings, whose: str, ask: Callable[[], float]) -> Finding | Fine:
    """How far this host's clock is from another one, that `ask` reads in seconds since 1970."""
    took, apart = min(_once(ask) for _ in range(ASKED))
    limit = settings.claim_expires
    # It was read somewhere between question and answer.
    if abs(apart) - took / 2 <= limit / 4:
        return Fine(f"the {whose}'s clock differs from ours by {abs(apart):.2f} s")
    kind = error if abs(apart) >= limit else warning
    return kind(
        "clock_skew",
        f"The {whose}'s clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} this host's.",
        "Leases keep to the database's clock alone, but Celery drops tasks by the clock of the host that runs them: a "
        f"claim {limit:g} s (claim_expires) after it was sent, a publish task after {settings.queue_lease:g} s "
        "(queue_lease). And Redis hands out unacknowledged tasks again by the clocks of the workers.",
        "Let all hosts keep time by NTP: timedatectl set-ntp true, or chronyc tracking to see what is wrong.",
    )


def _once(ask: Callable[[], float]) -> tuple[float, float]:
    before = time.time()
    theirs = ask()
    after = time.time()
    return after - before, theirs - (before + after) / 2
