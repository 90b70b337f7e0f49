"""Hop 3, send: begin a bundle, then send the messages that were begun. No transaction is open while sending."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Result, Ticket
from outbox_tasks.relay.order import send_in_order
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import SLOW
from outbox_tasks.wire import tracing

SLOT_WAITS = (0.002, 0.004, 0.008)
"""Seconds that a bundle waits for a slot each time, while quick sends hold them all."""


def begin_and_send(
    store: Store,
    publishers: Mapping[str, Publisher],
    bundle: Bundle,
    no_slot: Callable[[], None] = lambda: None,
    *,
    unhurried: bool = False,
) -> list[tuple[Ticket, Outcome]]:
    """Send the messages of a bundle that are still ours. Returns the outcome of each message that was begun, in order,
    with the ticket of this attempt. Calls `no_slot` if quick sends hold all slots. `unhurried`: see `Store.begin`."""
    begun = _begin(store, bundle, no_slot, unhurried)
    messages = list(begun.values())
    free = messages if len(messages) == len(bundle.tickets) else _safe_to_send(bundle, begun)
    outcomes: dict[str, Outcome] = {}
    if free:
        configured = store.settings.destinations.get(bundle.destination)
        with tracing.sending(bundle.destination, configured.scheme if configured else "", free) as sends:
            outcomes_in_order = send_in_order(store.settings, publishers, bundle.destination, sends.messages)
            sends.outcomes = _not_by_themselves(sends.messages, outcomes_in_order)
        outcomes = {message.id: outcome for message, outcome in zip(free, sends.outcomes, strict=True)}
    return [(_ticket(message), outcomes.get(message.id) or Outcome.behind()) for message in messages]


def _ticket(of: LeasedMessage) -> Ticket:
    return Ticket(of.id, of.attempts, of.event_type, of.key, of.latest, of.age, of.spared)


def _safe_to_send(bundle: Bundle, begun: Mapping[str, LeasedMessage]) -> list[LeasedMessage]:
    """The begun messages that can't overtake another one. A message that could not be begun is no longer ours, and its
    key is unknown: so each later message with a key might overtake it, and is left out. A broker that repeats a task
    may have put a message into the bundle twice."""
    free: list[LeasedMessage] = []
    gap = False
    for id in dict.fromkeys(ticket.id for ticket in bundle.tickets):
        message = begun.get(id)
        if message is None:
            gap = True
        elif not (gap and message.key is not None):
            free.append(message)
    return free


def _begin(store: Store, bundle: Bundle, no_slot: Callable[[], None], unhurried: bool) -> dict[str, LeasedMessage]:
    """Begin as soon as there is a slot. If there is none soon, release the bundle."""
    for wait in (*SLOT_WAITS, None):
        begun = store.begin(bundle, unhurried=unhurried)
        if begun:
            break
        slots = store.traffic.slots_for(bundle)
        if slots == "free":
            # It is not ours any more; or the destination gets nothing now, and a later claim may take it.
            store.give_back(bundle)
            break
        if slots == "slow" or wait is None:
            if slots == "quick":  # much of the queue goes to this destination
                no_slot()
            store.release(bundle.lease, bundle.tickets, SLOW)
            break
        time.sleep(wait)
    return begun


def _not_by_themselves(messages: Sequence[LeasedMessage], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes, without a retry of a message behind one of its key that was not sent either: Celery would retry
    each for itself, in any order. Such messages go back to the table."""
    stopped: set[str] = set()
    found = []
    for message, outcome in zip(messages, outcomes, strict=True):
        if message.key in stopped and outcome.result is Result.RETRY:
            outcome = Outcome.unforeseen(outcome.error or "", together=True)
        elif message.key is not None and outcome.result in (Result.RETRY, Result.OUTAGE):
            stopped.add(message.key)
        found.append(outcome)
    return found
