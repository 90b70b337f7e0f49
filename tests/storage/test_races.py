"""Writers, claimers and trouble at the same time: nothing is lost, nobody sends what another holds."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.relay.store import Store, lanes
from outbox_tasks.settings import Settings
from tests.storage.conftest import Box
from tests.storage.race import Died, Transaction, race

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


@pytest.fixture
def storages(next_settings: Settings) -> Iterator[list[Store]]:
    quick = next_settings.model_copy(update={"breaker_failures": 10**6})
    made = [Store.connect(quick) for _ in range(DRAINS)]
    yield made
    for storage in made:
        storage.close()


@pytest.mark.parametrize("seed", range(3))
def test_everything_that_is_committed_arrives(
    box: Box, storages: list[Store], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "FROM_FRONT_SECONDS", 1e9)  # no look from the front comes to help
    destination, chance = Shared(seed), random.Random(seed)
    plans = [[_transaction(chance) for _ in range(EACH)] for _ in range(WRITERS)]
    written = race(box, storages, destination, plans)
    assert len(destination.sent) == written == box.value("SELECT count(*) FROM outbox_messages")
    repeated = {id for id, times in destination.sent.items() if times > 1}
    named = "SELECT m.id::text FROM outbox_trouble t JOIN outbox_messages m USING (seq) WHERE t.history @> %s"
    causes = {id for [id] in box.rows(named, '[{"code": "unsettled"}]')}
    assert repeated <= causes


def _transaction(chance: random.Random) -> Transaction:
    fate = chance.random()
    return Transaction([{}] * chance.randint(1, 30), fate / 5, rolled_back=fate < 0.1)
