"""What the statuses of gRPC calls mean, for the publishers that make such calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grpc import StatusCode

from outbox_tasks.model import Outcome

Codes = Mapping[StatusCode, tuple[Callable[[str, str], Outcome], str]]

CODES: Codes = {
    StatusCode.UNAVAILABLE: (Outcome.outage, "connection"),
    StatusCode.DEADLINE_EXCEEDED: (Outcome.outage, "timeout"),
    StatusCode.UNAUTHENTICATED: (Outcome.outage, "unauthorized"),
    StatusCode.PERMISSION_DENIED: (Outcome.outage, "unauthorized"),
    StatusCode.UNIMPLEMENTED: (Outcome.outage, "unroutable"),
    StatusCode.NOT_FOUND: (Outcome.outage, "unroutable"),
    StatusCode.INVALID_ARGUMENT: (Outcome.dead, "invalid_argument"),
}
"""What the status of a call means; any other is a retry, under its own name in lower case."""

LOST = {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
"""After these statuses the channel is closed. Its backoff, its DNS answers and a silent connection must not outlive the
failure; the relay has a backoff of its own."""

SIZE = r"message (length )?(larger than|exceeds|too large)"
"""How gRPC's implementations say that a message is too large, in whatever case: a pattern."""


def outcome_of(code: StatusCode, details: str, codes: Codes = CODES) -> Outcome:
    """What a status means by this table."""
    name = code.name.lower()
    make: Callable[[str, str], Outcome]
    make, short = codes.get(code, (Outcome.retry, name))
    return make(short, details or name)
