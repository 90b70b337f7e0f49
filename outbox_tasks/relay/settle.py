"""Hop 4, settle: decide what each outcome means for its message, and record that under the lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.model import BUNDLE_BYTES, TOO_LARGE, Bundle, Outcome, Step, Ticket, Verdict
from outbox_tasks.relay.retry import judge
from outbox_tasks.relay.store import Store

log = logging.getLogger(__name__)

R = TypeVar("R")

NATIVE_RETRIES = 10
"""If more messages of one bundle than this fail, they go back to the table. A retry by Celery is one task for each
message, but a claim bundles them again. So a destination that fails many messages costs the workers little."""

FAILED = {Step.RETRY, Step.RELEASE, Step.OUTAGE, Step.DEAD, Step.BEHIND}

WAITS = (0.05, 0.2, 0.5)
"""Seconds between tries while the database is away; the last one repeats. The messages are sent already, so it is worth
a wait to record that."""


def settle(
    store: Store,
    bundle: Bundle,
    outcomes: Sequence[tuple[Ticket, Outcome]],
    opened: Callable[[str | None, str | None], None] = lambda code, error: None,
    *,
    by_celery: bool = True,
) -> list[Verdict]:
    """Record the outcomes of a bundle. Returns a verdict for each of its messages, in its order. A message that was not
    begun, or is no longer ours, is STALE. A task that was handed over stays HANDED: a quick worker may have begun it
    already. `opened` gets the code and error of an outage that opens the breaker.
    `by_celery`: Celery may retry messages after a short wait.

    Raises `DatabaseUnavailable` if the database stays away. Then the leases run out, and each message is delivered
    again, with the cause on its row.
    """
    judged = [judge(store.settings, bundle.destination, ticket, outcome) for ticket, outcome in outcomes]
    if not by_celery or sum(verdict.step is Step.RETRY for verdict in judged) > NATIVE_RETRIES:
        judged = [_released(verdict) for verdict in judged]
    verdicts = {verdict.ticket.id: verdict for verdict in judged if verdict.step is not Step.STALE}
    failed = [verdict for verdict in verdicts.values() if verdict.step in FAILED]
    # What the soft time limit leaves after the slowest send.
    deadline = time.monotonic() + store.settings.sending_time_of(bundle.destination) + store.settings.statement_timeout
    if len(failed) == len(verdicts):  # settling the others closes the breaker
        _tell_the_breaker(store, bundle, failed, deadline, opened)
    record = partial(store.settle, bundle.lease, bundle.destination, [*verdicts.values()], bundle.sender)
    settled, tried = _patiently(record, deadline, bundle, len(verdicts), partial(record, unhurried=True))
    sure = not tried  # a try without an answer may have settled them
    unsettled = [verdict for verdict in verdicts.values() if verdict.ticket.id not in settled]
    if vain := [verdict.ticket for verdict in unsettled if verdict.step not in (Step.BEHIND, Step.HANDED)]:
        _patiently(partial(store.sent_in_vain, vain, sure=sure), deadline, bundle, len(vain))
    result = [verdicts.get(ticket.id) or Verdict(ticket, Step.STALE) for ticket in bundle.tickets]
    return [v if v.ticket.id in settled or v.step is Step.HANDED else replace(v, step=Step.STALE) for v in result]


def not_fetched(store: Store, bundle: Bundle) -> list[Verdict]:
    """A begin had all the time there is for this single message, and did not end. If the message is a large one, that
    counts as a failed attempt, so that it ends as a dead letter. No verdict: the database alone is slow."""
    [ticket] = bundle.tickets
    try:
        size = store.size_of(bundle.lease, ticket)
        if size <= BUNDLE_BYTES:
            return []
        failed = Outcome.retry(TOO_LARGE, f"its payload has {size} bytes, and the database did not return them in time")
        tried = ticket._replace(attempt=ticket.attempt + 1)
        verdict = _released(judge(store.settings, bundle.destination, tried, failed))
        return [verdict] if store.settle(bundle.lease, bundle.destination, [verdict]) else []
    except DatabaseUnavailable:
        return []


def _released(verdict: Verdict) -> Verdict:
    return replace(verdict, step=Step.RELEASE) if verdict.step is Step.RETRY else verdict


def _tell_the_breaker(
    store: Store,
    bundle: Bundle,
    failed: Sequence[Verdict],
    deadline: float,
    opened: Callable[[str | None, str | None], None],
) -> None:
    """Tell the breaker whether the bundle reached the destination. A bundle counts as one send."""
    failed = [verdict for verdict in failed if verdict.step is not Step.BEHIND]
    if not failed:  # then nothing was sent
        return
    outage = next((verdict for verdict in failed if verdict.step is Step.OUTAGE), None)
    if outage is None:  # the destination answered, even if it refused
        _patiently(partial(store.traffic.recovered, bundle.destination), deadline, bundle, len(failed))
        return
    tripped = partial(store.traffic.tripped, bundle.destination, bundle.lease, outage.code, outage.error)
    if _patiently(tripped, deadline, bundle, len(failed))[0]:
        facts = {"destination": bundle.destination, "code": outage.code, "lease": bundle.lease}
        log.warning("the circuit of %s is open for a while: %s", bundle.destination, outage.code, extra=facts)
        opened(outage.code, outage.error)


def _patiently(
    settle: Callable[[], R], deadline: float, bundle: Bundle, count: int, unhurried: Callable[[], R] | None = None
) -> tuple[R, int]:
    """Try again while the database is away, until the deadline. If the statement was too slow, go on with `unhurried`,
    the same with more time. Returns also how often it was tried before."""
    for tried, wait in enumerate(chain(WAITS, repeat(WAITS[-1]))):
        try:
            return settle(), tried
        except DatabaseUnavailable as error:
            # Try at least once more: the process may have been paused, and the database may be back.
            if tried and time.monotonic() + wait > deadline:
                raise
            if unhurried and isinstance(error, DatabaseTooSlow):
                settle = unhurried
            facts = {"destination": bundle.destination, "lease": bundle.lease, "count": count}
            text = "could not settle %d messages to %s, lease %s, trying again: %s"
            log.warning(text, count, bundle.destination, bundle.lease, error, extra=facts)
            time.sleep(wait)
    raise AssertionError  # the waits have no end
