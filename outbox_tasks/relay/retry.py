"""Decides when a failed message is tried again, and when it is dead."""

from __future__ import annotations

import random

from celery.utils.time import get_exponential_backoff_interval

from outbox_tasks.model import FAILED_TOGETHER, Outcome, Result, Step, Ticket, Verdict
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


def judge(settings: Settings, destination: str, ticket: Ticket, outcome: Outcome) -> Verdict:
    """What happens next to a message whose `ticket.attempt`-th send had this outcome."""
    if outcome.result is Result.SENT:
        return Verdict(ticket, Step.SENT)
    if outcome.result is Result.HANDED:
        return Verdict(ticket, Step.HANDED, outcome.within)
    if outcome.result is Result.BEHIND:
        return Verdict(ticket, Step.BEHIND)
    configured = settings.destinations.get(destination)
    urls = [configured.url] if configured else []
    code = outcome.code and outcome.code[:MAX_CODE]
    error = outcome.error and without_secrets(outcome.error, *urls, most=MAX_ERROR)
    if outcome.result is Result.DISCARDED:
        return Verdict(ticket, Step.DISCARDED, 0.0, code, error)
    if outcome.code == FAILED_TOGETHER:  # no attempt counts: each is claimed again, alone
        return Verdict(ticket, Step.RELEASE, backoff(settings, ticket.spent), code, error)
    # An outage says nothing about the message. The next claim checks whether it has attempts left.
    counts = outcome.result is not Result.OUTAGE
    # A relay that does not know the destination leaves the message to a relay that does.
    most = MAX_ATTEMPTS if configured is None else configured.max_attempts
    if outcome.result is Result.DEAD or (counts and ticket.spent >= most):
        return Verdict(ticket, Step.DEAD, 0.0, code, error)
    if outcome.result is Result.OUTAGE:  # the wait grows, but the message must not be late once the destination is back
        wait = min(backoff(settings, ticket.attempt), settings.breaker_pause_max)
        return Verdict(ticket, Step.OUTAGE, max(wait, asked(outcome)), code, error)
    wait = backoff(settings, ticket.spent, at_least=asked(outcome))
    # A task that waits in Redis must not outlive the visibility timeout, so long waits go through the table. So do
    # messages with a rate or `latest`: only the claim looks at rates and at newer messages.
    soon = wait <= settings.native_retry_max * (1 + JITTER)
    native = soon and configured is not None and configured.rate_limit is None and not ticket.latest
    step = Step.RETRY if native else Step.RELEASE
    return Verdict(ticket, step, wait, code, error)
