"""What a claim has found."""

from __future__ import annotations

from typing import NamedTuple


class Claimed(NamedTuple):
    """A row that a claim has just leased, or has made a dead letter."""

    seq: int
    id: str
    destination: str
    event_type: str
    attempts: int
    status: str
    alone: bool
    key: str | None = None
    priority: int = 0
    code: str | None = None
    """Of its last error, or why it is dead."""
    error: str | None = None
    superseded: bool = False
    """It has failed, and a newer message of its key replaces it."""
    cause: str | None = None
    """Why its last lease ended: `unsettled`, it may arrive twice; `lease_expired`, before it was begun; of
    a supervised task `not_started` or `worker_lost`."""
    size: int = 0
    """Bytes of its payload."""
    age: float = 0.0
    """Seconds since it was due for the first time, if the claim has asked for that."""
