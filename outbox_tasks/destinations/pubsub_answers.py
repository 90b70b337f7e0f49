"""What the statuses of Pub/Sub's answers mean. https://cloud.google.com/pubsub/docs/reference/error-codes"""

from __future__ import annotations

import re
from collections.abc import Callable

from grpc import StatusCode

from outbox_tasks.model import Outcome

CODES: dict[StatusCode, tuple[Callable[[str, str], Outcome], str]] = {
    StatusCode.UNAVAILABLE: (Outcome.outage, "connection"),
    StatusCode.DEADLINE_EXCEEDED: (Outcome.outage, "timeout"),
    StatusCode.UNAUTHENTICATED: (Outcome.outage, "unauthorized"),
    StatusCode.PERMISSION_DENIED: (Outcome.outage, "unauthorized"),
    StatusCode.NOT_FOUND: (Outcome.outage, "unroutable"),
    StatusCode.UNIMPLEMENTED: (Outcome.outage, "unroutable"),
    StatusCode.FAILED_PRECONDITION: (Outcome.outage, "failed_precondition"),  # no billing, no key to encrypt with
    StatusCode.RESOURCE_EXHAUSTED: (Outcome.retry, "throttled"),
    StatusCode.INVALID_ARGUMENT: (Outcome.dead, "invalid_argument"),
}
"""Any other status is a retry, under its own name in lower case."""

LOST = {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
"""After these the channel is given up: its own backoff and its view of the DNS must not outlive the failure, nor a
connection that does not answer. The relay has a backoff of its own."""

SIZE = re.compile(r"request_size is too large|payload size exceeds|message (length )?(larger than|exceeds|too large)")
"""How Google, and gRPC itself, say that a request is too large."""
NAME = re.compile(r"invalid resource name|invalid \[\w+\] name", re.IGNORECASE)
"""How Google and its emulator say that there can be no such topic, with a status that else is a message's fault."""

NO_TOKEN = "Getting metadata from plugin failed"
REASON = re.compile(r"\b(?:invalid|unauthorized|unsupported|access)_[a-z_]+\b")
"""OAuth's name for a refusal (RFC 6749), in what is else not ours to repeat."""


def trouble(code: StatusCode, details: str) -> Outcome:
    """What the status of a request means for its messages."""
    if details.startswith(NO_TOKEN):
        reason = REASON.search(details)
        return Outcome.outage("unauthorized", f"there is no access token: {reason[0] if reason else 'no answer'}")
    if code is StatusCode.INVALID_ARGUMENT and NAME.search(details):
        return Outcome.outage("unroutable", details)
    if code in (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED) and SIZE.search(details):
        return Outcome.dead("too_large", details)
    name = code.name.lower()
    make: Callable[[str, str], Outcome]
    make, short = CODES.get(code, (Outcome.retry, name))
    return make(short, details or name)
