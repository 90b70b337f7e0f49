"""Compares clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from outbox_tasks.operating.problems.problem import Problem, error, warning

TRIES = 3
"""The fastest answer is the most exact."""

APART_SECONDS, FAR_APART_SECONDS = 30.0, 300.0
"""The relay works with any difference. But from five minutes on, other services refuse requests that the host has
signed."""

CAUSE = (
    "The relay itself goes by the database's clock, and works all the same. But AWS and receivers of webhooks refuse "
    "requests whose signed time is off by about five minutes, certificates seem too new or too old, and times in logs "
    "mislead."
)

REMEDY = "Let all hosts keep time by NTP: timedatectl set-ntp true, or chronyc tracking to see what is wrong."


def compared(whose: str, ask: Callable[[], float]) -> Iterator[Problem]:
    """Whether this host's clock differs from another one. `ask` reads that, in seconds since 1970."""
    took, apart = min(_once(ask) for _ in range(TRIES))
    # The other clock was read at some moment between question and answer.
    if abs(apart) - took / 2 > APART_SECONDS:
        yield _skew(f"The {whose}'s clock is {_by(apart)} this host's.", whose, apart)


def of_hosts(apart: Mapping[str, float]) -> Iterator[Problem]:
    """Whether the clocks of hosts, by name, differ from the database's by so many seconds."""
    off = {host: seconds for host, seconds in apart.items() if abs(seconds) > APART_SECONDS}
    if off:
        differences = "; ".join(f"{host} is {_by(seconds)} it" for host, seconds in sorted(off.items()))
        yield _skew(f"The clocks of hosts with workers differ from the database's: {differences}.", "", *off.values())


def _skew(fact: str, which: str, *apart: float) -> Problem:
    kind = error if max(map(abs, apart)) >= FAR_APART_SECONDS else warning
    return kind("clock_skew", fact, CAUSE, REMEDY, which=which)


def _by(apart: float) -> str:
    return f"{abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'}"


def _once(ask: Callable[[], float]) -> tuple[float, float]:
    before = time.time()
    theirs = ask()
    after = time.time()
    return after - before, theirs - (before + after) / 2
