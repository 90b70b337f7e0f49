"""What Django's users may do on the page."""

from __future__ import annotations

from typing import Any

PERMISSIONS = (
    ("look", "Can look at the outbox"),
    ("payload", "Can read payloads and headers of messages"),
    ("act", "Can redrive, discard and cancel messages, and pause destinations"),
)
"""Each includes those before it."""


def may(user: Any, what: str) -> bool:
    """Whether a user has one of the permissions that include this one."""
    names = [name for name, _ in PERMISSIONS]
    return any(user.has_perm(f"outbox_tasks.{name}") for name in names[names.index(what) :])
