"""Hop 4, settle: decide what each outcome means for its message, and record it, fenced by the lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import Bundle, Outcome, Step, Ticket, Verdict
from outbox_tasks.retry import judge
from outbox_tasks.store import Store

log = logging.getLogger(__name__)

PATIENCE = (0.05, 0.2, 0.5, 1.0, 1.5)
"""Seconds between tries while the database is away: it is sent, so it is worth some waiting to say so."""


def settle(store: Store, bundle: Bundle, outcomes: Sequence[tuple[Ticket, Outcome]]) -> list[Verdict]:
    """Record the outcomes of a bundle. Returns a verdict for each of its messages, in its order; STALE are those
    that were not begun or were not ours any more when they were settled.

    Raises `DatabaseUnavailable` when the database stays away: the leases then run out, and each message is
    delivered again, with the cause on its row.
    """
    verdicts = {ticket.id: judge(store.settings, bundle.destination, ticket, outcome) for ticket, outcome in outcomes}
    sent = [verdict for verdict in verdicts.values() if verdict.step is Step.SENT]
    failed = [verdict for verdict in verdicts.values() if verdict.step is not Step.SENT]
    # Two statements, two transactions: each is tried again by itself.
    settled = _settle(store, bundle.lease, sent) | _settle(store, bundle.lease, failed)
    result = [verdicts.get(ticket.id) or Verdict(ticket, Step.STALE) for ticket in bundle.tickets]
    return [v if v.ticket.id in settled else replace(v, step=Step.STALE) for v in result]


def _settle(store: Store, lease: str, verdicts: Sequence[Verdict]) -> set[str]:
    for wait in PATIENCE:
        try:
            return store.settle(lease, verdicts)
        except DatabaseUnavailable as error:
            log.warning("could not settle %d messages, trying again: %s", len(verdicts), error)
            time.sleep(wait)
    return store.settle(lease, verdicts)
