"""Writers, claimers and trouble at the same time: nothing is lost, nobody sends what another holds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.relay.drain import drain
from outbox_tasks.settings import Settings
from outbox_tasks.storage import lanes
from outbox_tasks.storage.store import Storage
from tests.conftest import eventually
from tests.storage.conftest import Box

WRITERS, DRAINS, EACH = 8, 2, 20


class Shared:
    """A destination that many send to. Some sends fail; some workers die as they send."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.sent: Counter[str] = Counter()

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        with self.lock:
            fates = [self.random.random() for _ in messages]
            if fates[0] < 0.03:
                raise Died
            arrived = [message.id for message, fate in zip(messages, fates, strict=True) if fate < 0.9]
            self.sent.update(arrived)
        return [Outcome.sent() if fate < 0.9 else Outcome.outage("down", "no answer") for fate in fates]

    def get(self, destination: str) -> Shared:
        return self


class Died(BaseException):
    """A worker that is killed."""


@pytest.fixture
def storages(next_settings: Settings) -> Iterator[list[Storage]]:
    quick = next_settings.model_copy(update={"breaker_failures": 10**6})
    made = [Storage.connect(quick) for _ in range(DRAINS)]
    yield made
    for storage in made:
        storage.close()


@pytest.mark.parametrize("seed", range(3))
def test_everything_that_is_committed_arrives(
    box: Box, storages: list[Storage], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "FRONT", 1e9)  # no look from the front comes to help
    destination, over = Shared(seed), threading.Event()
    chance = random.Random(seed)
    plans = [[(chance.randint(1, 30), chance.random()) for _ in range(EACH)] for _ in range(WRITERS)]

    def write(plan: list[tuple[int, float]]) -> int:
        committed = 0
        with psycopg.connect(box.url) as connection:
            for count, fate in plan:
                box.write(count, on=connection)
                time.sleep(fate / 5)
                if fate < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    committed += count
        return committed

    def relay(storage: Storage) -> None:
        while not over.is_set():
            try:
                drain(storage, destination)  # type: ignore[arg-type]
            except Died:
                box_of_thread = psycopg.connect(box.url, autocommit=True)
                with box_of_thread:
                    box_of_thread.execute(f"UPDATE {box.schema}.outbox_leases SET locked_until = now()")

    with ThreadPoolExecutor(WRITERS + DRAINS) as pool:
        relays = [pool.submit(relay, storage) for storage in storages]
        written = sum(pool.map(write, plans))
        try:
            eventually(lambda: _wake(box) == written)
        finally:
            over.set()
        for one in relays:
            one.result()
    assert len(destination.sent) == written == box.value("SELECT count(*) FROM outbox_messages")
    box.check_books()
    repeated = {id for id, times in destination.sent.items() if times > 1}
    named = "SELECT m.id::text FROM outbox_trouble t JOIN outbox_messages m USING (seq) WHERE t.history @> %s"
    causes = {id for [id] in box.rows(named, '[{"code": "unsettled"}]')}
    assert repeated <= causes


def _wake(box: Box) -> int:
    """End the waits. Returns how many messages were sent."""
    box.connection.execute("UPDATE outbox_waiting SET due = now()")
    return int(box.value("SELECT coalesce(sum(count), 0) FROM outbox_journal WHERE state = 'sent'"))
