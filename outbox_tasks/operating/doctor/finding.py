"""What the doctor says: findings, each with its remedy, and what is in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from outbox_tasks.text import without_secrets


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """Messages wait, are sent twice, or will be."""
    WARNING = "warning"
    """It works, but not as it should, or not for long."""
    NOTE = "note"
    """For information only."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be."""

    code: str
    """Short and stable, for programs. docs/doctor.md explains each."""
    severity: Severity
    fact: str
    """What was found."""
    cause: str
    """Where it comes from, and why it matters."""
    remedy: str
    """What to do about it: a command, a statement or a setting."""


@dataclass(frozen=True, slots=True)
class Fine:
    """One thing that was checked, and is in order."""

    fact: str


def or_fine(found: Iterable[Finding], fact: str) -> Sequence[Finding | Fine]:
    """The findings; if there are none, what is in order."""
    return list(found) or [Fine(fact)]


def _finding(severity: Severity, code: str, fact: str, cause: str, remedy: str) -> Finding:
    return Finding(code, severity, without_secrets(fact), cause, remedy)


error = partial(_finding, Severity.ERROR)
warning = partial(_finding, Severity.WARNING)
note = partial(_finding, Severity.NOTE)
