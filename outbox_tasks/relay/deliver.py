"""The delivery of one bundle: begin, send, settle, and tell the listener."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from outbox_tasks.destinations import Publisher
from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.model import Bundle, Outcome, Step, Ticket, Verdict
from outbox_tasks.relay.send import begin_and_send
from outbox_tasks.relay.settle import not_fetched, settle
from outbox_tasks.relay.store import Store

log = logging.getLogger(__name__)


class Listener:
    """Hears of each step of a delivery. Override the methods that you need. An exception ends the delivery at that
    step."""

    retries_by_celery = True
    """Celery retries a message after a short wait. If false, the message goes back to the table."""

    def no_slot(self) -> None:
        """Quick sends hold all slots of the destination. The bundle goes back to the table."""

    def not_begun(self, bundle: Bundle, error: DatabaseUnavailable) -> None:
        """The begin failed, so nothing was sent. Without an exception of yours, `error` is raised."""

    def sent(self, bundle: Bundle, outcomes: Sequence[tuple[Ticket, Outcome]]) -> None:
        """Each message that was begun has an outcome. The database does not know them yet."""

    def breaker_opened(self, bundle: Bundle, code: str | None, error: str | None) -> None:
        """The breaker of the destination is open now."""

    def not_settled(self, bundle: Bundle, error: Exception) -> None:
        """The database may not know the outcomes. Without an exception of yours, `error` is raised."""

    def dead(self, bundle: Bundle, verdict: Verdict) -> None:
        """A message is dead now."""

    def settled(self, bundle: Bundle, verdicts: Sequence[Verdict], seconds: float) -> None:
        """The bundle is done; `seconds` is the time since the begin."""


def deliver(
    store: Store,
    publishers: Mapping[str, Publisher],
    bundle: Bundle,
    listener: Listener | None = None,
    *,
    unhurried: bool = False,
) -> list[Verdict]:
    """Returns a verdict for each message of the bundle, in its order: see `settle`. `unhurried`: see `Store.begin`.

    Raises `DatabaseUnavailable` if nothing could be begun, or the outcomes could not be recorded.
    """
    listener = listener or Listener()
    began = time.monotonic()
    verdicts: list[Verdict] = []
    try:
        outcomes = begin_and_send(store, publishers, bundle, listener.no_slot, unhurried=unhurried)
    except DatabaseUnavailable as error:
        if unhurried and isinstance(error, DatabaseTooSlow):
            verdicts = not_fetched(store, bundle)
        if not verdicts:
            listener.not_begun(bundle, error)
            raise
    else:
        listener.sent(bundle, outcomes)
        try:
            opened = partial(listener.breaker_opened, bundle)
            verdicts = settle(store, bundle, outcomes, opened, by_celery=listener.retries_by_celery)
        except Exception as error:
            listener.not_settled(bundle, error)
            raise
    for verdict in verdicts:
        if verdict.step is Step.DEAD:
            listener.dead(bundle, verdict)
    listener.settled(bundle, verdicts, time.monotonic() - began)
    store.traffic.count_again(publishing=True)
    return verdicts


def halved(store: Store, bundle: Bundle) -> Bundle | None:
    """The first half of a bundle whose begin took too long. Releases the other half: its messages may be behind those
    of the first. None: it is a single message."""
    kept = len(bundle.tickets) // 2
    if not kept:
        return None
    store.release(bundle.lease, bundle.tickets[kept:])
    log.warning("a bundle of %d messages to %s is halved", len(bundle.tickets), bundle.destination)
    return replace(bundle, tickets=bundle.tickets[:kept])
