"""What one destination may take of the cluster: sends at once, and messages a second."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select, update

from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.relay.store import Store
from tests.claims import claimed
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.doctoring import beats

TWO = {name: {"url": "a://b"} for name in ("orders", "mails")}


class Destination:
    """Remembers how many sends there were at once."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.seconds)
        with self._lock:
            self.at_once -= 1
        return [Outcome.sent()] * len(messages)

    def close(self) -> None:
        """Nothing is open."""


def taken(store: Store) -> Counter[str]:
    """How many messages one claim takes singly, by destination."""
    return Counter(single.destination for single in claimed(store)[0])


class TestSlots:
    @pytest.mark.parametrize(
        ("destinations", "slots"),
        [(TWO, 4), ({"orders": TWO["orders"]}, 5), ({**TWO, "orders": {"url": "a://b", "concurrency": 9}}, 9)],
        ids=["one is left to the others", "there are no others", "its own concurrency"],
    )
    def test_they_are_as_many_as_processes_that_send(
        self, new_store: MakeStore, rows: Rows, destinations: dict[str, Any], slots: int
    ) -> None:
        store = new_store(destinations=destinations)
        for name, ago, queues, size in (
            ("two", 0, ["outbox.drain", "outbox.publish"], 2), ("three", 0, ["outbox.drain"], 3),
            ("claims", 0, ["outbox.claim"], 7), ("gone", LATE_SECONDS, ["outbox.drain"], 7),
        ):  # fmt: skip
            beats(rows, "worker", ago, name, queues=queues, concurrency=size)
        assert store.traffic.slots("orders") == slots


class TestRate:
    @pytest.fixture
    def store(self, new_store: MakeStore) -> Store:
        limited = {"orders": {"url": "a://b", "rate_limit": 20}, "mails": {"url": "a://b"}}
        return new_store(singles="all", destinations=limited)

    def set_allowance(self, rows: Rows, allowance: float, seconds_ago: float = 0.0) -> None:
        with rows.engine.begin() as connection:
            values = {"allowance": allowance, "metered_at": seconds_from_now(-seconds_ago)}
            connection.execute(update(rows.tables.destinations).values(values))

    @pytest.mark.parametrize(("seconds", "least"), [(0.5, 10), (60.0, 20)])
    def test_time_fills_the_bucket_up_to_a_second(self, store: Store, rows: Rows, seconds: float, least: int) -> None:
        rows.insert(100)
        taken(store)
        began = time.monotonic()
        self.set_allowance(rows, 0, seconds)
        assert least <= taken(store)["orders"] <= min(20, least + 20 * (time.monotonic() - began) + 1)

    def test_a_claim_puts_back_what_it_does_not_need(self, store: Store, rows: Rows) -> None:
        rows.insert(1)
        taken(store)
        self.set_allowance(rows, 20)
        rows.insert(4, key="one at a time")
        assert taken(store)["orders"] == 1
        with rows.engine.connect() as connection:
            allowance = connection.scalar(select(rows.tables.destinations.c.allowance))
        assert allowance == pytest.approx(19, abs=1)

    def test_many_claims_at_once_keep_to_the_rate(self, store: Store, rows: Rows) -> None:
        rows.insert(1)
        taken(store)
        rows.insert(200)
        began, found = time.monotonic(), Counter[str]()
        self.set_allowance(rows, 20)
        threads = [threading.Thread(target=lambda: found.update(taken(store))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 20 <= found["orders"] <= 20 + 20 * (time.monotonic() - began) + 1

    def test_below_one_a_second_a_claim_takes_one_message(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "rate_limit": 0.01}})
        rows.insert(3)
        assert [taken(store)["orders"] for _ in range(3)] == [1, 0, 0]
