"""Hop 3, publish: begin, then send what began, with no transaction open while sending."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from outbox_tasks.destinations import Publisher, load
from outbox_tasks.errors import OutageError, PermanentError, TransientError
from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Ticket
from outbox_tasks.settings import Settings
from outbox_tasks.store import Store

log = logging.getLogger(__name__)


class Publishers(Mapping[str, Publisher]):
    """The publishers of the configured destinations, each made when first asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, Publisher] = {}

    def __getitem__(self, name: str) -> Publisher:
        if name not in self._open:
            self._open[name] = load(self._settings.destinations[name], self._settings)
        return self._open[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._settings.destinations)

    def __len__(self) -> int:
        return len(self._settings.destinations)

    def close(self) -> None:
        """Close those that were made."""
        for publisher in self._open.values():
            publisher.close()
        self._open.clear()


def publish(store: Store, publishers: Mapping[str, Publisher], bundle: Bundle) -> list[tuple[Ticket, Outcome]]:
    """Send the messages of a bundle that are still ours. Returns the outcome of each one begun, in order,
    with the ticket of the attempt that was begun."""
    begun = store.begin(bundle)
    messages = [begun[ticket.id] for ticket in bundle.tickets if ticket.id in begun]
    if not messages:
        # Perhaps because the destination is left alone: then they are for a later claim, at once.
        store.give_back(bundle)
        return []
    outcomes = send(publishers, bundle.destination, messages)
    return [
        (Ticket(message.id, message.attempts, message.event_type), outcome)
        for message, outcome in zip(messages, outcomes, strict=True)
    ]


def send(publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    """One outcome per message, whatever the publisher does."""
    try:
        publisher = publishers.get(destination)
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
        log.exception("the publisher of %s failed", destination)
        return [Outcome.retry(type(error).__name__, str(error) or repr(error))] * len(messages)
    if len(outcomes) != len(messages):
        error_text = f"the publisher of {destination!r} returned {len(outcomes)} outcomes for {len(messages)} messages"
        return [Outcome.retry("bad_publisher", error_text)] * len(messages)
    return outcomes
