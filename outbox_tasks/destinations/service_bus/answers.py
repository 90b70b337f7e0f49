"""What the errors of Azure Service Bus mean, and the exceptions of its client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as azure

from outbox_tasks.model import Outcome, Result

TROUBLE: dict[type[BaseException], tuple[Result, str]] = {
    azure.OperationTimeoutError: (Result.OUTAGE, "timeout"),
    azure.ServiceBusAuthorizationError: (Result.OUTAGE, "unauthorized"),
    azure.MessagingEntityNotFoundError: (Result.OUTAGE, "unroutable"),
    azure.MessagingEntityDisabledError: (Result.OUTAGE, "disabled"),
    azure.ServiceBusQuotaExceededError: (Result.OUTAGE, "full"),
    azure.ServiceBusServerBusyError: (Result.RETRY, "throttled"),
    azure.MessageSizeExceededError: (Result.DEAD, "too_large"),
    azure.ServiceBusCommunicationError: (Result.OUTAGE, "connection"),
    ClientAuthenticationError: (Result.OUTAGE, "unauthorized"),  # azure-identity has found no credentials
    TimeoutError: (Result.OUTAGE, "timeout"),
    OSError: (Result.OUTAGE, "connection"),
}
"""Exceptions → outcome and code; the first that fits counts. Any other goes by its condition, below."""

CONDITIONS: dict[str, tuple[Result, str]] = {
    "com.microsoft:argument-error": (Result.DEAD, "refused"),
    "com.microsoft:argument-out-of-range": (Result.DEAD, "refused"),
    "amqp:unknown-error": (Result.RETRY, "detached"),  # the client's own name for a link that has ended
    "amqp:connection:forced": (Result.OUTAGE, "connection"),
    "amqp:link:detach-forced": (Result.RETRY, "detached"),
    "amqp:socket-error": (Result.OUTAGE, "connection"),
    "amqp:resource-deleted": (Result.OUTAGE, "unroutable"),
    "com.microsoft:timeout": (Result.OUTAGE, "timeout"),
}
"""Errors for which the client has no exception, by the service's names. Any other is a retry, under its own name."""

STATUSES = {
    401: (Result.OUTAGE, "unauthorized"),
    403: (Result.OUTAGE, "unauthorized"),
    404: (Result.OUTAGE, "unroutable"),
}
"""The answers to a token that is not accepted."""

SESSIONS = re.compile(r"session", re.IGNORECASE)
"""Found in the error for a message without the session that it needs. A batch with several sessions may get the same
error."""


def outcome_of(error: BaseException) -> Outcome:
    """What an exception means for the messages that were being sent."""
    chain = list(_chain(error))
    condition = next(filter(None, (_text(getattr(cause, "condition", None)) for cause in chain)), "")
    for cause in chain:  # the client wraps exceptions that it does not know
        for kind, known in TROUBLE.items():
            if isinstance(cause, kind):
                return _outcome(*known, error)
    for cause in chain:
        status = getattr(cause, "status_code", None)
        if isinstance(status, int):  # the answer to the token
            return _outcome(*STATUSES.get(status, (Result.OUTAGE, "unavailable")), cause)
    if condition in CONDITIONS:
        return _outcome(*CONDITIONS[condition], error)
    name = condition.rpartition(":")[2].replace("-", "_")
    return _outcome(Result.RETRY, name or type(error).__name__, error)


def is_for_all(outcome: Outcome) -> bool:
    """Whether every message of a batch would get this outcome, because no message is at fault."""
    return outcome.result is Result.OUTAGE or outcome.code == "throttled"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "inner_exception", None)


def _outcome(result: Result, code: str, error: BaseException) -> Outcome:
    text = " ".join(str(error).split()) or type(error).__name__
    ten_seconds = 10.0 if code == "throttled" else None  # a busy service asks to be left alone for so long
    return Outcome(result, code, text, ten_seconds)


def _text(condition: Any) -> str:
    value = getattr(condition, "value", condition)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
