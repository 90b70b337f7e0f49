"""A relay in one process, and a destination that takes down what it gets. And writers and relays at the same time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest

from outbox_tasks.model import LeasedMessage, Outcome, Step
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.claims import drain_batches
from tests.conftest import eventually
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


class Transaction(NamedTuple):
    """What a writer does at once."""

    messages: Sequence[dict[str, Any]]
    pause: float
    """Seconds before it ends."""
    rolled_back: bool = False


def end_waits(box: Box) -> None:
    """All that waits for its time is due."""
    box.connection.execute("UPDATE outbox_waiting SET due = now()")
    box.connection.execute("UPDATE outbox_held SET since = now()")
    box.connection.execute("UPDATE outbox_keys SET due = now() WHERE token IS NULL AND due < 'infinity'")


def race(
    box: Box, storages: Sequence[Store], destination: object, plans: Sequence[Sequence[Transaction]],
    others: Sequence[Callable[[], None]],
) -> None:  # fmt: skip
    """Run a writer for each plan, and a drain for each storage, until all that was committed is in the journal.
    `others` run meanwhile, again and again."""
    over = threading.Event()

    def write(plan: Sequence[Transaction]) -> int:
        committed = 0
        with psycopg.connect(box.url) as connection:
            for each in plan:
                for fields in each.messages:
                    box.write(1, on=connection, **fields)
                time.sleep(each.pause)
                if each.rolled_back:
                    connection.rollback()
                else:
                    connection.commit()
                    committed += len(each.messages)
        return committed

    def relay(storage: Store) -> None:
        storage.claims.keep_house()  # as each claim does
        drain(storage, {"orders": destination}, "orders", Listener())  # type: ignore[dict-item]

    def again_and_again(other: Callable[[], None]) -> None:
        while not over.is_set():
            other()

    with ThreadPoolExecutor(len(plans) + len(storages) + len(others)) as pool:
        running = [
            pool.submit(again_and_again, other) for other in (*(partial(relay, each) for each in storages), *others)
        ]
        try:
            written = sum(pool.map(write, plans))
            ended = "SELECT coalesce(sum(count), 0) = %s FROM outbox_journal"
            eventually(lambda: box.value(ended, written) or any(one.done() for one in running), 45)
        finally:
            over.set()
        for one in running:
            one.result()
    assert box.value(ended, written)
    box.check_books()
