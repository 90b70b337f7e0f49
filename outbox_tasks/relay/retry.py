"""Decides when a failed message is tried again, and when it is dead."""

from __future__ import annotations

import random

from celery.utils.time import get_exponential_backoff_interval

from outbox_tasks.model import FAILED_TOGETHER, TOO_LARGE, LeasedMessage, Outcome, Result, Step, Verdict
from outbox_tasks.settings import Settings
from outbox_tasks.text import without_secrets

JITTER_SHARE = 0.25
"""Waits get longer by up to this share, so that messages that failed together don't return together. They never get
shorter: a destination may have asked for the wait."""

LONGEST_ASKED_SECONDS = 86_400.0
"""The longest wait that a destination can ask for: no answer may delay a message for ever."""

SUPERSEDED, TOO_OLD = "superseded", "too_old"
"""Codes of messages that are not sent any more: a newer message replaces it, or `max_age` is over."""

MAX_CODE, MAX_ERROR = 64, 500
"""How many characters of an error's code and text the row keeps."""


def backoff(settings: Settings, attempts: int, *, at_least: float = 0.0) -> float:
    """Seconds to wait after the `attempts`-th failed attempt: base · 2^(attempts-1), capped, with jitter."""
    plain = get_exponential_backoff_interval(settings.backoff_base, min(max(attempts, 1) - 1, 60), settings.backoff_cap)
    return float(max(plain, at_least)) * (1 + JITTER_SHARE * random.random())  # noqa: S311 - nothing secret


def retry_after(outcome: Outcome) -> float:
    """The seconds that the destination asked for, within bounds: a publisher passes on any number."""
    return min(max(0.0, outcome.retry_after or 0.0), LONGEST_ASKED_SECONDS)  # in this order NaN becomes 0


def unsendable(settings: Settings, message: LeasedMessage, *, newer: bool) -> Verdict | None:
    """What happens to a message that must not be sent. None: it may be sent. `newer`: it has failed, and there is a
    newer message of its key. There are five cases:

    1. The newer message replaces it. 2. It is too old. 3. It is larger than its destination takes. 4. It has spent its
    attempts: the last one ended without a settle. 5. The database did not return its payload in time: that counts as a
    failed attempt.
    """
    configured = settings.destinations[message.destination]
    if newer:
        error = "it had failed, and there is a newer message of its key"
        return Verdict(message, Step.DISCARDED, 0.0, SUPERSEDED, error, sent=False)
    if configured.max_age is not None and message.age > configured.max_age:
        error = f"not delivered within {configured.max_age:g} seconds"
        return Verdict(message, Step.DEAD, 0.0, TOO_OLD, error, sent=False)
    if message.size > configured.largest:
        error = f"its payload has {message.size} bytes, and the destination takes {configured.largest}: see max_bytes"
        return Verdict(message, Step.DEAD, 0.0, TOO_LARGE, error, sent=False)
    if message.spent > configured.max_attempts:
        return Verdict(message, Step.DEAD, sent=False)  # its last error stays
    if message.unread:
        error = f"its payload has {message.size} bytes, and the database did not return them in time"
        return judge(settings, message, Outcome.retry(TOO_LARGE, error), by_celery=False)
    return None


def judge(settings: Settings, message: LeasedMessage, outcome: Outcome, *, by_celery: bool) -> Verdict:
    """What happens next to a message whose send had this outcome. `by_celery`: Celery may try it again after a short
    wait. Of a failure there are five cases:

    1. Nobody wants the message any more: it is discarded. 2. It failed together with others, and nobody knows which of
    them was the cause: no attempt counts, and each is sent again by itself. 3. It can never be delivered, or it was its
    last attempt: it is dead. 4. The destination is out of reach: no attempt counts, and the wait grows, but not so far
    that the message is late once the destination is back. 5. It is sent again after its backoff: by Celery if the wait
    is short, else through the table.
    """
    if outcome.result is Result.SENT:
        return Verdict(message, Step.SENT)
    if outcome.result is Result.HANDED:
        return Verdict(message, Step.HANDED, outcome.within)
    if outcome.result is Result.BEHIND:
        return Verdict(message, Step.BEHIND, sent=False)
    configured = settings.destinations[message.destination]
    code = outcome.code and outcome.code[:MAX_CODE]
    error = outcome.error and without_secrets(outcome.error, configured.url, most=MAX_ERROR)
    if outcome.result is Result.DISCARDED:
        return Verdict(message, Step.DISCARDED, 0.0, code, error)
    if outcome.code == FAILED_TOGETHER:
        return Verdict(message, Step.LATER, backoff(settings, message.spent), code, error)
    is_outage = outcome.result is Result.OUTAGE
    if outcome.result is Result.DEAD or (not is_outage and message.spent >= configured.max_attempts):
        return Verdict(message, Step.DEAD, 0.0, code, error)
    if is_outage:
        wait = min(backoff(settings, message.attempts), settings.breaker_pause_max)
        return Verdict(message, Step.OUTAGE, max(wait, retry_after(outcome)), code, error)
    wait = backoff(settings, message.spent, at_least=retry_after(outcome))
    # A task that waits in Redis must not outlive the visibility timeout.
    is_short = wait <= settings.native_retry_max * (1 + JITTER_SHARE)
    return Verdict(message, Step.RETRY if by_celery and is_short else Step.LATER, wait, code, error)
