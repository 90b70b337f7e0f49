"""Hop 3, send: begin a bundle, then send the messages that were begun. No transaction is open while sending."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from outbox_tasks.destinations import Publisher, load
from outbox_tasks.errors import OutageError, PermanentError, TransientError
from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Result, Ticket
from outbox_tasks.redaction import logger
from outbox_tasks.relay.claim_check import ClaimCheck
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import SLOW, Settings
from outbox_tasks.wire import tracing

log = logger("outbox_tasks.publish")

SLOT_WAITS = (0.002, 0.004, 0.008)
"""Seconds that a bundle waits for a slot of its destination, while quick sends hold them."""


class Publishers(Mapping[str, Publisher]):
    """The publishers of the configured destinations, each made when first asked for.

    Few clients may be used by two threads or greenlets at once. So each send borrows a publisher, and a destination
    has as many of them as there were sends at once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free: dict[str, list[Publisher]] = {name: [] for name in settings.destinations}
        self._checks: dict[str, ClaimCheck] = {}

    def __getitem__(self, name: str) -> Publisher:
        free = self._free[name]
        if not free:
            free.append(self._made(name))
        return free[-1]

    @contextmanager
    def borrowed(self, name: str) -> Iterator[Publisher | None]:
        """A publisher for this send alone; None if the destination is not configured."""
        if name not in self._free:
            yield None
            return
        free = self._free[name]
        try:
            publisher = free.pop()
        except IndexError:
            publisher = self._made(name)
        try:
            yield publisher
        finally:
            free.append(publisher)

    def _made(self, name: str) -> Publisher:
        limits = self._settings.limits_of(name)
        if self.claim_check(name) is not None:
            # Storing and sending share the time limit: half is for the storage.
            limits = limits.model_copy(update={"send_timeout": limits.send_timeout / 2})
        return load(self._settings.destinations[name], limits)

    def claim_check(self, name: str) -> ClaimCheck | None:
        """The storage of a destination's large payloads, if it has one."""
        destination = self._settings.destinations.get(name)
        if destination is None or destination.claim_check is None:
            return None
        if name not in self._checks:
            self._checks[name] = ClaimCheck(destination, self._settings.limits_of(name).send_timeout / 2)
        return self._checks[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._settings.destinations)

    def __len__(self) -> int:
        return len(self._settings.destinations)

    def close(self) -> None:
        """Close all publishers."""
        for free in self._free.values():
            while free:
                free.pop().close()
        self._checks.clear()


def begin_and_send(
    store: Store,
    publishers: Mapping[str, Publisher],
    bundle: Bundle,
    no_slot: Callable[[], None] = lambda: None,
    *,
    unhurried: bool = False,
) -> list[tuple[Ticket, Outcome]]:
    """Send the messages of a bundle that are still ours. Returns the outcome of each message that was begun, in order,
    with the ticket of the attempt. Calls `no_slot` if quick sends hold all slots. `unhurried`: see `Store.begin`."""
    begun = _begin(store, bundle, no_slot, unhurried)
    messages = [begun[ticket.id] for ticket in bundle.tickets if ticket.id in begun]
    free = _overtaking_nobody(bundle, begun)
    outcomes: dict[str, Outcome] = {}
    if free:
        configured = store.settings.destinations.get(bundle.destination)
        with tracing.sending(bundle.destination, configured.scheme if configured else "", free) as sends:
            sends.outcomes = send_in_order(store.settings, publishers, bundle.destination, sends.messages)
        outcomes = {message.id: outcome for message, outcome in zip(free, sends.outcomes, strict=True)}
    return [
        (
            Ticket(message.id, message.attempts, message.event_type, message.key, message.latest, message.age),
            outcomes.get(message.id) or Outcome.behind(),
        )
        for message in messages
    ]


def _overtaking_nobody(bundle: Bundle, begun: Mapping[str, LeasedMessage]) -> list[LeasedMessage]:
    """The begun messages that can't overtake another one. A message that could not be begun is no longer ours, and its
    key is unknown: so each later message with a key might overtake it, and is left out."""
    free: list[LeasedMessage] = []
    gap = False
    for ticket in bundle.tickets:
        message = begun.get(ticket.id)
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
        crowded = store.traffic.crowded(bundle)
        if crowded is None:
            # It is stale, or its breaker is open: then a later claim may take it at once.
            store.give_back(bundle)
            break
        if crowded or wait is None:
            if not crowded:  # quick sends hold the slots, so much of the queue goes to this destination
                no_slot()
            store.release(bundle.lease, bundle.tickets, SLOW)
            break
        time.sleep(wait)
    return begun


def send_in_order(
    settings: Settings, publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]
) -> list[Outcome]:
    """One outcome per message. Messages are sent in waves: the first of every key together, then the second ones. So
    each message is sent after the one before it with the same key has arrived, and not at all if that one failed.
    """
    passing = {Result.SENT, Result.DISCARDED, *(() if settings.dead_blocks(destination) else (Result.DEAD,))}
    outcomes: dict[str, Outcome] = {}
    stopped: set[str] = set()
    deadline = time.monotonic() + settings.waves_of(destination)
    for wave in _waves(messages):
        if outcomes and time.monotonic() > deadline:
            break
        free = [message for message in wave if message.key not in stopped]
        for message, outcome in zip(free, send(publishers, destination, free) if free else (), strict=True):
            outcomes[message.id] = outcome
            if message.key is not None and outcome.result not in passing:
                stopped.add(message.key)
    return [outcomes.get(message.id) or Outcome.behind() for message in messages]


def _waves(messages: Sequence[LeasedMessage]) -> list[list[LeasedMessage]]:
    waves: list[list[LeasedMessage]] = [[]]
    seen: Counter[str] = Counter()
    for message in messages:
        if message.key is None:
            waves[0].append(message)
            continue
        if seen[message.key] == len(waves):
            waves.append([])
        waves[seen[message.key]].append(message)
        seen[message.key] += 1
    return waves


def send(publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    """One outcome per message, whatever the publisher and the storage of its large payloads do."""
    try:
        check = publishers.claim_check(destination) if isinstance(publishers, Publishers) else None
        entries = messages if check is None else check.store(messages)
    except Exception as error:  # a time limit may strike anywhere
        log.exception("the claim check of %s failed%s", destination, _of(messages), extra={"destination": destination})
        return _unforeseen(repr(error), messages)
    ready = [entry for entry in entries if not isinstance(entry, Outcome)]
    outcomes = iter(_send(publishers, destination, ready) if ready else ())
    return [entry if isinstance(entry, Outcome) else next(outcomes) for entry in entries]


def _of(messages: Sequence[LeasedMessage]) -> str:
    return f", with message {messages[0].id}" + (f" and {len(messages) - 1} more" if len(messages) > 1 else "")


def _send(publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    try:
        with _borrowed(publishers, destination) as publisher:
            if publisher is None:
                # A relay with newer settings claimed it; one of those can also send it.
                return [Outcome.retry("unknown_destination", f"{destination!r} is not configured here")] * len(messages)
            outcomes = publisher.publish(messages)
    except PermanentError as error:
        return [Outcome.dead(error.code, str(error))] * len(messages)
    except TransientError as error:
        return [Outcome.retry(error.code, str(error))] * len(messages)
    except OutageError as error:
        return [Outcome.outage(error.code, str(error))] * len(messages)
    except Exception as error:  # a publisher may raise anything, and a time limit may strike anywhere
        log.exception("the publisher of %s failed%s", destination, _of(messages), extra={"destination": destination})
        return _unforeseen(repr(error), messages)
    if len(outcomes) != len(messages):
        told = f"the publisher of {destination!r} returned {len(outcomes)} outcomes for {len(messages)} messages"
        return _unforeseen(told, messages)
    return outcomes


def _borrowed(publishers: Mapping[str, Publisher], destination: str) -> AbstractContextManager[Publisher | None]:
    if isinstance(publishers, Publishers):
        return publishers.borrowed(destination)
    return nullcontext(publishers.get(destination))


def _unforeseen(error: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    return [Outcome.unforeseen(error, together=len(messages) > 1)] * len(messages)
