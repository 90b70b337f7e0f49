"""Decides when a failed message is tried again, and when it is dead."""

from __future__ import annotations

import random

from celery.utils.time import get_exponential_backoff_interval

from outbox_tasks.model import FAILED_TOGETHER, TOO_LARGE, LeasedMessage, Outcome, Result, Step, Verdict
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import without_secrets

JITTER = 0.25
"""Waits get longer by up to this share, so that messages that failed together don't return together. They never get
shorter: a destination may have asked for the wait."""

LONGEST_ASKED = 86_400.0
"""Seconds: the longest wait that a destination can ask for. No answer may delay a message for ever."""

MAX_ATTEMPTS: int = Destination.model_fields["max_attempts"].default
"""The limit for a destination that is not configured."""

SUPERSEDED, TOO_OLD = "superseded", "too_old"
"""Codes of messages that are not sent any more: a newer one replaces it, or `max_age` is over."""

MAX_CODE, MAX_ERROR = 64, 500
"""How many characters of an error's code and text the row keeps."""


def backoff(settings: Settings, attempts: int, *, at_least: float = 0.0) -> float:
    """Seconds to wait after the `attempts`-th failed attempt: base · 2^(attempts-1), capped, with jitter."""
    plain = get_exponential_backoff_interval(settings.backoff_base, min(max(attempts, 1) - 1, 60), settings.backoff_cap)
    return float(max(plain, at_least)) * (1 + JITTER * random.random())  # noqa: S311 - nothing secret


def asked(outcome: Outcome) -> float:
    """The seconds that the destination asked for, within bounds: a publisher passes on any number."""
    try:
        seconds = float(outcome.retry_after or 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), LONGEST_ASKED)  # in this order NaN becomes 0


def unsendable(settings: Settings, message: LeasedMessage) -> Verdict | None:
    """What happens to a message that must not be sent any more; None: it may be sent. Its key goes on without it."""
    limits = settings.destinations.get(message.destination)
    if message.newer:
        return Verdict(
            message,
            Step.DISCARDED,
            0.0,
            SUPERSEDED,
            "it had failed, and there is a newer message of its key",
            sent=False,
        )
    if limits is None:  # it is left to a relay that knows the destination
        return None
    if limits.max_age is not None and message.age > limits.max_age:
        return Verdict(message, Step.DEAD, 0.0, TOO_OLD, f"not delivered within {limits.max_age:g} seconds", sent=False)
    if message.size > limits.largest:
        error = f"its payload has {message.size} bytes, and the destination takes {limits.largest}: see max_bytes"
        return Verdict(message, Step.DEAD, 0.0, TOO_LARGE, error, sent=False)
    if message.spent > limits.max_attempts:  # its last error stays
        return Verdict(message, Step.DEAD, sent=False)
    if message.unread:
        error = f"its payload has {message.size} bytes, and the database did not return them in time"
        return judge(settings, message, Outcome.retry(TOO_LARGE, error), by_celery=False)
    return None


def judge(settings: Settings, message: LeasedMessage, outcome: Outcome, *, by_celery: bool) -> Verdict:
    """What happens next to a message whose send had this outcome. `by_celery`: Celery may try it again after a short
    wait."""
    if outcome.result is Result.SENT:
        return Verdict(message, Step.SENT)
    if outcome.result is Result.HANDED:
        return Verdict(message, Step.HANDED, outcome.within)
    if outcome.result is Result.BEHIND:
        return Verdict(message, Step.BEHIND, sent=False)
    configured = settings.destinations.get(message.destination)
    urls = [configured.url] if configured else []
    code = outcome.code and outcome.code[:MAX_CODE]
    error = outcome.error and without_secrets(outcome.error, *urls, most=MAX_ERROR)
    if outcome.result is Result.DISCARDED:
        return Verdict(message, Step.DISCARDED, 0.0, code, error)
    if outcome.code == FAILED_TOGETHER:  # no attempt counts: each is sent again, alone
        return Verdict(message, Step.LATER, backoff(settings, message.spent), code, error)
    # An outage says nothing about the message. Whether it has attempts left is asked before the next send.
    counts = outcome.result is not Result.OUTAGE
    # A relay that does not know the destination leaves the message to a relay that does.
    most = MAX_ATTEMPTS if configured is None else configured.max_attempts
    if outcome.result is Result.DEAD or (counts and message.spent >= most):
        return Verdict(message, Step.DEAD, 0.0, code, error)
    if outcome.result is Result.OUTAGE:  # the wait grows, but the message must not be late once the destination is back
        wait = min(backoff(settings, message.attempts), settings.breaker_pause_max)
        return Verdict(message, Step.OUTAGE, max(wait, asked(outcome)), code, error)
    wait = backoff(settings, message.spent, at_least=asked(outcome))
    # A task that waits in Redis must not outlive the visibility timeout, so long waits go through the table.
    soon = wait <= settings.native_retry_max * (1 + JITTER) and configured is not None
    return Verdict(message, Step.RETRY if by_celery and soon else Step.LATER, wait, code, error)
