"""A relay in one process, and a destination that takes down what it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from outbox_tasks.model import LeasedMessage, Outcome, Step
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.claims import drain_batches
from tests.storage.conftest import Box

Answer = Callable[[LeasedMessage], Outcome]


class Receiver:
    """A destination that takes down what it gets, and answers as it is told."""

    def __init__(self, answer: Answer = lambda message: Outcome.sent()) -> None:
        self.answer = answer
        self.got: list[LeasedMessage] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        self.got += messages
        return [self.answer(message) for message in messages]

    def close(self) -> None:
        pass


@pytest.fixture
def storage(next_settings: Settings) -> Iterator[Store]:
    made = Store.connect(next_settings)
    yield made
    made.close()


def drained(storage: Store, receiver: Receiver) -> Counter[Step]:
    """Send what is due to a receiver. Returns what became of it."""
    return drain_batches(storage, dict.fromkeys(storage.settings.destinations, receiver))


def numbers(box: Box, receiver: Receiver) -> list[int]:
    """The numbers of what was received, in this order."""
    of = {str(id): seq for id, seq in box.rows("SELECT id, seq FROM outbox_messages")}
    return [of[message.id] for message in receiver.got]
