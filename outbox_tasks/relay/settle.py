"""Settle, the last hop: record what became of the messages of a lease, under this lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.store import Store

log = logging.getLogger(__name__)

R = TypeVar("R")

NOT_SENT = {Step.RETRY, Step.LATER, Step.OUTAGE, Step.DEAD, Step.BEHIND}

SETTLE_WAITS = (0.05, 0.2, 0.5)
"""Seconds between tries while the database is away; the last one repeats. The messages are sent already, so it is worth
a wait to record that."""


class Settled(NamedTuple):
    """How the settle of a lease ended."""

    verdicts: list[Verdict]
    """In the order of the messages. STALE: the lease was lost before. A task that was handed over stays HANDED: a quick
    worker may have begun it already."""
    more: bool
    """More messages of their keys are due now."""


def settle(
    store: Store,
    token: str,
    destination: str,
    verdicts: list[Verdict],
    opened: Callable[[str | None, str | None], None] = lambda code, error: None,
) -> Settled:
    """Record the verdicts on all messages of a lease. `opened` gets the code and error of an outage that opens the
    circuit.

    Raises `DatabaseUnavailable` if the database stays away. Then the lease runs out, and each message is sent again,
    with the cause on it.
    """
    # What Celery's time limit leaves after the slowest send.
    deadline = time.monotonic() + store.settings.sending_time_of(destination) + store.settings.statement_timeout
    # Settling a message that reached the destination closes the circuit.
    if all(verdict.step in NOT_SENT or not verdict.sent for verdict in verdicts):
        _tell_the_breaker(store, token, destination, verdicts, deadline, opened)
    record = partial(store.settle, token, destination, verdicts)
    (settled, more), tries = _patiently(record, deadline, destination, len(verdicts), partial(record, unhurried=True))
    if len(settled) == len(verdicts):
        return Settled(verdicts, more)
    lost = [v for v in verdicts if v.message.seq not in settled and v.sent and v.step is not Step.HANDED]
    if lost:
        sure = not tries  # a try without an answer may have settled them
        vain = partial(store.sent_in_vain, [verdict.message for verdict in lost], sure=sure)
        _patiently(vain, deadline, destination, len(lost))
    return Settled(
        [v if v.message.seq in settled or v.step is Step.HANDED else replace(v, step=Step.STALE) for v in verdicts],
        more,
    )


def _tell_the_breaker(
    store: Store,
    token: str,
    destination: str,
    verdicts: Sequence[Verdict],
    deadline: float,
    opened: Callable[[str | None, str | None], None],
) -> None:
    """Tell the breaker whether a batch reached the destination. It counts as one send."""
    failed = [verdict for verdict in verdicts if verdict.sent]
    if not failed:
        return
    outage = next((verdict for verdict in failed if verdict.step is Step.OUTAGE), None)
    if outage is None:  # the destination answered, even if it refused
        _patiently(partial(store.traffic.recovered, destination), deadline, destination, len(failed))
        return
    tripped = partial(store.traffic.tripped, destination, token, outage.code, outage.error)
    if _patiently(tripped, deadline, destination, len(failed))[0]:
        facts = {"destination": destination, "code": outage.code, "lease": token}
        log.warning("the circuit of %s is open for a while: %s", destination, outage.code, extra=facts)
        opened(outage.code, outage.error)


def _patiently(
    ask: Callable[[], R], deadline: float, destination: str, count: int, unhurried: Callable[[], R] | None = None
) -> tuple[R, int]:
    """Try again while the database is away, until the deadline. If the statement was too slow, go on with `unhurried`,
    the same with more time. Returns also how often it was tried before."""
    for tries, wait in enumerate(chain(SETTLE_WAITS, repeat(SETTLE_WAITS[-1]))):
        try:
            return ask(), tries
        except DatabaseUnavailable as error:
            # Try at least once more: the process may have been paused, and the database may be back.
            if tries and time.monotonic() + wait > deadline:
                raise
            if unhurried and isinstance(error, DatabaseTooSlow):
                ask = unhurried
            facts = {"destination": destination, "count": count}
            log.warning("could not settle %d messages to %s, trying again: %s", count, destination, error, extra=facts)
            time.sleep(wait)
    raise AssertionError  # the waits have no end
