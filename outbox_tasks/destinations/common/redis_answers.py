"""What Redis's refusals and the exceptions of its client mean, for the publishers that speak to it."""

from __future__ import annotations

from redis import exceptions
from redis.exceptions import RedisError

from outbox_tasks.model import Outcome

NAMED: dict[type[RedisError], str] = {
    exceptions.AuthenticationError: "unauthorized",
    exceptions.AuthorizationError: "unauthorized",
    exceptions.NoPermissionError: "unauthorized",
    exceptions.OutOfMemoryError: "oom",
    exceptions.ReadOnlyError: "readonly",
    exceptions.BusyLoadingError: "loading",
    exceptions.TimeoutError: "timeout",
}
"""redis-py removes the names of these refusals from the text."""

OUT_OF_ORDER = {"busy", "clusterdown", "loading", "masterdown", "misconf", "noreplicas", "oom", "readonly"}
"""Redis would refuse any other message too."""


def outcome_of(error: RedisError) -> Outcome:
    """What an error means. No refusal is the message's fault, not even if the key is of another type."""
    # redis-py's words for a pipeline's command quote the message, so they are removed.
    text = str(error).partition("\n")[0].rpartition(" of pipeline caused error: ")[2]
    for kind, code in NAMED.items():
        if isinstance(error, kind):
            return Outcome.outage(code, text)
    if not isinstance(error, exceptions.ResponseError):
        return Outcome.outage("connection", text)
    code = text.partition(" ")[0].lower()
    if code == "wrongtype":
        return Outcome.outage("wrong_type", text)
    code = code if code.isalpha() else "refused"
    return Outcome.outage(code, text) if code in OUT_OF_ORDER else Outcome.retry(code, text)
