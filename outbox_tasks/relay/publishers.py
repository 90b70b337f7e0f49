"""The publishers of a process, and the outcomes of what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from outbox_tasks.destinations import Publisher, load
from outbox_tasks.errors import OutageError, PermanentError, TransientError
from outbox_tasks.model import UNKNOWN_DESTINATION, LeasedMessage, Outcome
from outbox_tasks.relay.claim_check import ClaimCheck
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import logger, said

log = logger("outbox_tasks.publish")


class Publishers(Mapping[str, Publisher]):
    """The publishers of the configured destinations. Each is made when first asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, Publisher] = {}

    def __getitem__(self, name: str) -> Publisher:
        made = self._made.get(name)
        if made is None:
            made = SharedPublisher(self._settings.destinations[name], self._settings.limits_of(name))
            made = self._made.setdefault(name, made)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings.destinations)

    def __len__(self) -> int:
        return len(self._settings.destinations)

    def close(self) -> None:
        """Close all publishers."""
        while self._made:
            self._made.popitem()[1].close()


class SharedPublisher:
    """A destination's publisher, for any number of threads and greenlets at once. It stores large payloads first.

    Few clients may be used by two threads at once. So each send borrows a publisher of its own, and there are as many
    of them as there were sends at once.
    """

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._destination = destination
        self._storage: ClaimCheck | None = None
        if destination.claim_check is not None:
            half = settings.send_timeout / 2  # storing and sending share the time limit
            self._storage = ClaimCheck(destination, half)
            settings = settings.model_copy(update={"send_timeout": half})
        self._settings = settings
        self._free = [load(destination, settings)]
        # What could not be stored is not sent, and the publisher does not know of it: then the relay keeps the order.
        self.keeps_order = self._storage is None and getattr(self._free[0], "keeps_order", False)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Store what is too large, and send what could be stored."""
        if self._storage is None:
            return self._publish(messages)
        entries = self._storage.store(messages)
        ready = [entry for entry in entries if not isinstance(entry, Outcome)]
        outcomes = iter(outcomes_of(self._publish, self._destination.name, ready) if ready else ())
        return [entry if isinstance(entry, Outcome) else next(outcomes) for entry in entries]

    def close(self) -> None:
        """Close all that are not being used."""
        while self._free:
            self._free.pop().close()

    def _publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        try:
            publisher = self._free.pop()
        except IndexError:
            publisher = load(self._destination, self._settings)
        try:
            return publisher.publish(messages)
        finally:
            self._free.append(publisher)


def send(publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    """One outcome per message, whatever the publisher does."""

    def publish(messages: Sequence[LeasedMessage]) -> list[Outcome]:
        publisher = publishers.get(destination)
        if publisher is None:
            # A relay with newer settings claimed it, and can also send it.
            return [Outcome.retry(UNKNOWN_DESTINATION, f"{destination!r} is not configured here")] * len(messages)
        return publisher.publish(messages)

    return outcomes_of(publish, destination, messages)


def outcomes_of(
    publish: Callable[[Sequence[LeasedMessage]], list[Outcome]], destination: str, messages: Sequence[LeasedMessage]
) -> list[Outcome]:
    """One outcome per message, whatever `publish` raises or returns."""
    try:
        outcomes = publish(messages)
    except PermanentError as error:
        return [Outcome.dead(error.code, str(error))] * len(messages)
    except TransientError as error:
        return [Outcome.retry(error.code, str(error))] * len(messages)
    except OutageError as error:
        return [Outcome.outage(error.code, str(error))] * len(messages)
    except Exception as error:  # a publisher may raise anything, and a time limit may strike anywhere
        which = f", with message {messages[0].id}" + (f" and {len(messages) - 1} more" if len(messages) > 1 else "")
        log.exception("the publisher of %s failed%s", destination, which, extra={"destination": destination})
        return _unforeseen(said(error, repr), messages)
    if len(outcomes) != len(messages):
        told = f"the publisher of {destination!r} returned {len(outcomes)} outcomes for {len(messages)} messages"
        return _unforeseen(told, messages)
    return outcomes


def _unforeseen(error: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    return [Outcome.unforeseen(error, together=len(messages) > 1)] * len(messages)
