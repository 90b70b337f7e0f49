"""A problem: something that a person should know, or do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from outbox_tasks.text import many, without_secrets

PROBLEMS_OF_A_CODE = 10
"""Problems of one code that are named. The others are counted, or a thousand destinations would fill the screen."""


class Severity(StrEnum):
    """How much a problem matters."""

    ERROR = "error"
    """Messages wait, are sent twice, or will be."""
    WARNING = "warning"
    """It works, but not as it should, or not for long."""
    NOTE = "note"
    """For information only."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    code: str
    """Short and stable, for programs. docs/doctor.md explains each."""
    severity: Severity
    fact: str
    """What is wrong, as a sentence."""
    cause: str
    """Where it comes from, and why it matters."""
    remedy: str
    """What to do about it. Each line is a command, a statement or a sentence."""
    which: str = ""
    """The destination, queue, feed, task, worker or table that has the problem; empty: the whole relay."""
    since: float | None = None
    """For how many seconds it has been so, if that is known."""
    how_many: int | None = None
    """How many messages, keys or tasks it is about, if it can be counted."""
    follows: tuple[Problem, ...] = ()
    """Problems that come from this one, and end with it."""

    @property
    def name(self) -> str:
        """The code, and what it is about: two problems of one look have two names."""
        return f"{self.code} {self.which}".rstrip()


def _problem(severity: Severity, code: str, fact: str, cause: str, remedy: str, **more: Any) -> Problem:
    return Problem(code, severity, without_secrets(fact), cause, remedy, **more)


error = partial(_problem, Severity.ERROR)
warning = partial(_problem, Severity.WARNING)
note = partial(_problem, Severity.NOTE)


def first_ones(problems: Iterable[Problem], what: str) -> Iterator[Problem]:
    """The first problems of each code, and one problem that counts the others. `what` has them: a `destination`."""
    by_code: dict[str, list[Problem]] = {}
    for problem in problems:
        by_code.setdefault(problem.code, []).append(problem)
    for same in by_code.values():
        more = len(same) - PROBLEMS_OF_A_CODE
        yield from same[: PROBLEMS_OF_A_CODE if more > 1 else None]
        if more > 1:
            fact = f"The same holds for {many(more, f'more {what}')}."
            remedy = "outbox-tasks status --json has the state of each."
            next_one = same[PROBLEMS_OF_A_CODE]
            yield _problem(next_one.severity, next_one.code, fact, next_one.cause, remedy, how_many=more)
