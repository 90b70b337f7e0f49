"""What the doctor says: findings, each with its remedy, and what it found in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outbox_tasks.redaction import without_secrets


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """Messages wait, are sent twice, or will be."""
    WARNING = "warning"
    """It works, and will not for long, or not as it should."""
    NOTE = "note"
    """For information: no reason to act, or not known."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be."""

    code: str
    """Short and stable, for programs: each is explained in docs/doctor.md."""
    severity: Severity
    fact: str
    """What was found."""
    cause: str
    """How that comes, and why it matters."""
    remedy: str
    """What to do about it: a command, a statement or a setting."""


@dataclass(frozen=True, slots=True)
class Fine:
    """One thing that was looked at, and is in order."""

    fact: str


def error(code: str, fact: str, cause: str, remedy: str) -> Finding:
    """A finding that can't wait."""
    return Finding(code, Severity.ERROR, without_secrets(fact), cause, remedy)


def warning(code: str, fact: str, cause: str, remedy: str) -> Finding:
    """A finding to see to."""
    return Finding(code, Severity.WARNING, without_secrets(fact), cause, remedy)


def note(code: str, fact: str, cause: str, remedy: str) -> Finding:
    """A finding to know of."""
    return Finding(code, Severity.NOTE, without_secrets(fact), cause, remedy)


def lasting(seconds: float) -> str:
    """A length of time, for people: the largest unit that says enough."""
    for unit, size in (("days", 172_800.0), ("hours", 7_200.0), ("minutes", 120.0)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400.0, 'hours': 3_600.0, 'minutes': 60.0}[unit]:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
