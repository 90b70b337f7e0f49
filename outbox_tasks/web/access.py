"""The people who visit, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """What a person may do. Each role includes those before it."""

    LOOK = 1
    """See everything but the contents of messages."""
    PAYLOAD = 2
    """See payloads and headers too."""
    ACT = 3
    """Redrive, discard, cancel, pause and resume."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who visits the page. The audit keeps the name."""

    name: str
    role: Role
