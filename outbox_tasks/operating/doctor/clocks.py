"""Compares clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from outbox_tasks.operating.doctor.finding import Finding, Fine, error, warning

TRIES = 3
"""The fastest answer is the most exact."""

APART, FAR_APART = 30.0, 300.0
"""Seconds. The relay works with any difference. But from five minutes on, other services refuse requests that the host
has signed."""

CAUSE = (
    "The relay itself goes by the database's clock, and works all the same. But AWS and receivers of webhooks refuse "
    "requests whose signed time is off by about five minutes, certificates seem too new or too old, and times in logs "
    "mislead."
)

REMEDY = "Let all hosts keep time by NTP: timedatectl set-ntp true, or chronyc tracking to see what is wrong."


def compared(whose: str, ask: Callable[[], float]) -> Finding | Fine:
    """The difference between this host's clock and another one. `ask` reads that, in seconds since 1970."""
    took, apart = min(_once(ask) for _ in range(TRIES))
    # The other clock was read at some moment between question and answer.
    if abs(apart) - took / 2 <= APART:
        return Fine(f"the {whose}'s clock differs from ours by {abs(apart):.2f} s")
    return _finding(f"The {whose}'s clock is {_by(apart)} this host's.", apart)


def of_hosts(apart: Mapping[str, float]) -> Finding | Fine:
    """The differences between the clocks of hosts, by name, and the database's."""
    off = {host: seconds for host, seconds in apart.items() if abs(seconds) > APART}
    if off:
        text = "; ".join(f"{host} is {_by(seconds)} it" for host, seconds in sorted(off.items()))
        return _finding(f"The clocks of hosts with workers differ from the database's: {text}.", *off.values())
    most = max((abs(seconds) for seconds in apart.values()), default=0.0)
    return Fine(f"the clocks of the workers' hosts ({len(apart)}) differ from the database's by {most:.2f} s at most")


def _finding(fact: str, *apart: float) -> Finding:
    kind = error if max(map(abs, apart)) >= FAR_APART else warning
    return kind("clock_skew", fact, CAUSE, REMEDY)


def _by(apart: float) -> str:
    return f"{abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'}"


def _once(ask: Callable[[], float]) -> tuple[float, float]:
    before = time.time()
    theirs = ask()
    after = time.time()
    return after - before, theirs - (before + after) / 2
