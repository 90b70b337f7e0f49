"""What the statuses of Pub/Sub's answers mean. https://cloud.google.com/pubsub/docs/reference/error-codes"""

from __future__ import annotations

import re

from grpc import StatusCode

from outbox_tasks.destinations.common import grpc_status
from outbox_tasks.model import Outcome, Result

CODES = {
    **grpc_status.CODES,
    StatusCode.FAILED_PRECONDITION: (Result.OUTAGE, "failed_precondition"),  # no billing, no key to encrypt with
    StatusCode.RESOURCE_EXHAUSTED: (Result.RETRY, "throttled"),
}

SIZE = re.compile(rf"request_size is too large|payload size exceeds|{grpc_status.SIZE}", re.IGNORECASE)
"""How Google, and gRPC itself, say that a request is too large."""
NAME = re.compile(r"invalid resource name|invalid \[\w+\] name", re.IGNORECASE)
"""How Google and its emulator say that a topic can't have this name. By its status alone, the answer would blame a
message."""

NO_TOKEN = "Getting metadata from plugin failed"  # noqa: S105 - the text of an error
REASON = re.compile(r"\b(?:invalid|unauthorized|unsupported|access)_[a-z_]+\b")
"""OAuth's name for a refusal (RFC 6749). The rest of the text must not be shown."""


def trouble(code: StatusCode, details: str) -> Outcome:
    """What the status of a request means for its messages."""
    if details.startswith(NO_TOKEN):
        reason = REASON.search(details)
        return Outcome.outage("unauthorized", f"there is no access token: {reason[0] if reason else 'no answer'}")
    if code is StatusCode.INVALID_ARGUMENT and NAME.search(details):
        return Outcome.outage("unroutable", details)
    if code in (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED) and SIZE.search(details):
        return Outcome.dead("too_large", details)
    return grpc_status.outcome_of(code, details, CODES)
