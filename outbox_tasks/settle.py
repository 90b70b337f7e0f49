"""Hop 4, settle: decide what each outcome means for its message, and record it, fenced by the lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import Bundle, Outcome, Step, Ticket, Verdict
from outbox_tasks.retry import judge
from outbox_tasks.store import Store

log = logging.getLogger(__name__)

WAITS = (0.05, 0.2, 0.5)
"""Seconds before the next try while the database is away, the last again and again: it is sent, so it is worth some
waiting to say so."""


def settle(store: Store, bundle: Bundle, outcomes: Sequence[tuple[Ticket, Outcome]]) -> list[Verdict]:
    """Record the outcomes of a bundle. Returns a verdict for each of its messages, in its order; STALE are those
    that were not begun or were not ours any more when they were settled.

    Raises `DatabaseUnavailable` when the database stays away: the leases then run out, and each message is
    delivered again, with the cause on its row.
    """
    verdicts = {ticket.id: judge(store.settings, bundle.destination, ticket, outcome) for ticket, outcome in outcomes}
    done = [verdict for verdict in verdicts.values() if verdict.step in (Step.SENT, Step.DISCARDED)]
    failed = [verdict for verdict in verdicts.values() if verdict.step not in (Step.SENT, Step.DISCARDED)]
    # What the soft time limit leaves, after a slow send, for trying again.
    patience = store.settings.soft_time_limit - store.settings.send_timeout - store.settings.statement_timeout
    deadline = time.monotonic() + patience
    # Two statements, two transactions: each is tried again by itself.
    settled = _settle(store, bundle.lease, done, deadline) | _settle(store, bundle.lease, failed, deadline)
    result = [verdicts.get(ticket.id) or Verdict(ticket, Step.STALE) for ticket in bundle.tickets]
    return [v if v.ticket.id in settled else replace(v, step=Step.STALE) for v in result]


def _settle(store: Store, lease: str, verdicts: Sequence[Verdict], deadline: float) -> set[str]:
    for tried, wait in enumerate(chain(WAITS, repeat(WAITS[-1]))):
        try:
            return store.settle(lease, verdicts)
        except DatabaseUnavailable as error:
            # Once more in any case: after a pause of the whole process the time is over, and the database may be back.
            if tried and time.monotonic() + wait > deadline:
                raise
            log.warning("could not settle %d messages, trying again: %s", len(verdicts), error)
            time.sleep(wait)
    raise AssertionError  # the waits have no end
