"""What Amazon's answers mean, and the exceptions of its client."""

from __future__ import annotations

import re
from typing import Any

from botocore import exceptions as botocore

from outbox_tasks.model import Outcome, Result

# Exceptions of the client → the code of an outage. The first that fits counts.
TROUBLE: tuple[tuple[str, tuple[type[Exception], ...]], ...] = (
    ("timeout", (botocore.ConnectTimeoutError, botocore.ReadTimeoutError)),
    ("connection", (botocore.ConnectionError, botocore.HTTPClientError, botocore.IncompleteReadError)),
    ("unauthorized", (botocore.BotoCoreError,)),  # about credentials: nothing else depends on the machine
)

# What the codes of the services have in them, without `AWS.SimpleQueueService.`, `KMS.` and `Exception`.
THROTTLED = re.compile("Throttl|TooManyRequests|LimitExceeded|SlowDown|OverLimit|PriorRequestNotComplete")
FORBIDDEN = re.compile("AccessDenied|AuthorizationError|NotAuthorized")
UNAUTHORIZED = re.compile(
    f"{FORBIDDEN.pattern}|Token|Signature|UnrecognizedClient|InvalidAccessKeyId|InvalidSecurity|RequestExpired"
    "|AuthFailure|OptInRequired|SubscriptionRequired"
)
UNROUTABLE = re.compile("QueueDoesNotExist|NonExistentQueue|QueueDeletedRecently|NotFound|InvalidAddress")
UNAVAILABLE = re.compile("ServiceUnavailable|Internal(Error|Failure|ServerError)")
TOO_LARGE = re.compile("TooLong|RequestEntityTooLarge")
INVALID = re.compile("InvalidParameter|ParameterValueInvalid|InvalidMessageContents|InvalidAttribute")
SAYS_TOO_LARGE = re.compile(r"shorter than|too (?:long|large)", re.IGNORECASE)
SAYS_UNROUTABLE = re.compile(r"parameter:? (?:TopicArn|TargetArn|QueueUrl|QueueName)\b")


def trouble(error: Exception) -> Outcome:
    """What an exception of the client means."""
    if isinstance(error, botocore.ClientError):
        details = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _refusal(str(details.get("Code", "")), str(details.get("Message", "")), status)
    for code, kinds in TROUBLE:
        if isinstance(error, kinds):
            # The client's text may quote what it has found instead of credentials.
            return Outcome.outage(code, type(error).__name__ if code == "unauthorized" else str(error))
    return Outcome.retry(type(error).__name__, str(error) or repr(error))


def failed(entry: dict[str, Any]) -> Outcome:
    """What the refusal of one entry of a batch means. An unknown refusal that is the sender's fault is final."""
    outcome = _refusal(str(entry.get("Code", "")), str(entry.get("Message", "")), 0)
    if outcome.result is Result.RETRY and outcome.code != "throttled" and entry.get("SenderFault"):
        return Outcome.dead("refused", outcome.error or "")
    if outcome.code == "unavailable":
        return Outcome.retry("unavailable", outcome.error or "")  # the others of the batch were taken
    return outcome


def _refusal(code: str, message: str, status: int) -> Outcome:
    """What a code of the service means. `status` is HTTP's, if the whole request was refused."""
    kms = code.lower().startswith("kms")
    name = re.sub(r"^(?:.*\.|KMS|Kms)", "", code).removesuffix("Exception")
    text = f"{code}: {message}"
    if THROTTLED.search(name) or status == 429:
        return Outcome.retry("throttled", text)
    if UNAUTHORIZED.search(name) or status in (401, 403):
        # The answer to a wrong signature quotes the request, with its session token.
        return Outcome.outage("unauthorized", text if FORBIDDEN.search(name) else code)
    if kms:
        return Outcome.outage("kms", text)
    if UNROUTABLE.search(name) or (INVALID.search(name) and SAYS_UNROUTABLE.search(message)):
        return Outcome.outage("unroutable", text)
    if UNAVAILABLE.search(name) or status >= 500:
        return Outcome.outage("unavailable", text)
    if TOO_LARGE.search(name) or status == 413 or (INVALID.search(name) and SAYS_TOO_LARGE.search(message)):
        return Outcome.dead("too_large", text)
    if INVALID.search(name):
        return Outcome.dead("refused", text)
    return Outcome.retry(
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() if name.isalpha() else f"http_{status}", text
    )
