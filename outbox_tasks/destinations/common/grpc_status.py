"""What publishers that make gRPC calls have in common: the options of channels, and what statuses mean."""

from __future__ import annotations

from collections.abc import Mapping

from grpc import StatusCode

from outbox_tasks.model import Outcome, Result

CODES = {
    StatusCode.UNAVAILABLE: (Result.OUTAGE, "connection"),
    StatusCode.DEADLINE_EXCEEDED: (Result.OUTAGE, "timeout"),
    StatusCode.UNAUTHENTICATED: (Result.OUTAGE, "unauthorized"),
    StatusCode.PERMISSION_DENIED: (Result.OUTAGE, "unauthorized"),
    StatusCode.UNIMPLEMENTED: (Result.OUTAGE, "unroutable"),
    StatusCode.NOT_FOUND: (Result.OUTAGE, "unroutable"),
    StatusCode.INVALID_ARGUMENT: (Result.DEAD, "invalid_argument"),
}
"""What the status of a call means; any other is a retry, under its own name in lower case."""

LOST = {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
"""After these statuses the channel is closed. Its backoff, its DNS answers and a silent connection must not outlive the
failure; the relay has a backoff of its own."""

CHANNEL: list[tuple[str, str | int]] = [
    ("grpc.use_local_subchannel_pool", 1),  # else a closed channel's connection may be used again
    ("grpc.max_receive_message_length", -1),
    ("grpc.service_config_disable_resolution", 1),  # no name server may switch on retries
]
"""The options of a channel."""

SIZE = r"message (length )?(larger than|exceeds|too large)"
"""How gRPC's implementations say that a message is too large, in whatever case: a pattern."""


def outcome_of(code: StatusCode, details: str, codes: Mapping[StatusCode, tuple[Result, str]] = CODES) -> Outcome:
    """What a status means by this table."""
    name = code.name.lower()
    result, short = codes.get(code, (Result.RETRY, name))
    return Outcome(result, short, details or name)
