"""Messages that share a key arrive in the order in which they were numbered, one run at a time."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_tasks.model import LeasedMessage, Outcome, Step, Ticket, Verdict
from outbox_tasks.relay import claim
from outbox_tasks.relay.store import Store, keyed, lanes
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, eventually
from tests.storage.conftest import Box
from tests.storage.race import Transaction, race
from tests.storage.test_drain import Receiver, _claim, drained
from tests.storage.test_drain import storage as storage


def numbers(box: Box, receiver: Receiver) -> list[int]:
    """The numbers of what was received, in this order."""
    of = {str(id): seq for id, seq in box.rows("SELECT id, seq FROM outbox_messages")}
    return [of[message.id] for message in receiver.got]


def test_the_messages_of_a_key_arrive_in_order(box: Box, storage: Store) -> None:
    for n in range(300):
        box.write(1, key=f"k{n % 3}")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 300
    of_keys = defaultdict(list)
    for number, message in zip(numbers(box, receiver), receiver.got, strict=True):
        of_keys[message.key].append(number)
    assert all(found == sorted(found) for found in of_keys.values())
    assert len(of_keys) == 3
    box.check_books()


def test_a_key_in_flight_holds_what_is_behind_it(box: Box, storage: Store) -> None:
    box.write(2, key="a")
    [bundle] = _claim(storage)
    box.write(2, key="a")
    box.write(1, key="b")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 1
    assert numbers(box, receiver) == [5]
    assert box.where(3) == box.where(4) == ["held"]
    begun = storage.begin(bundle)
    assert len(begun) == 2
    assert drained(storage, Receiver()).sent == 0
    storage.release(bundle.lease, bundle.tickets)
    box.rows("UPDATE outbox_leases SET locked_until = now() RETURNING 1")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 4
    assert numbers(box, receiver) == [1, 2, 3, 4]
    box.check_books()


def test_what_was_held_goes_when_the_run_before_it_was_sent(box: Box, storage: Store) -> None:
    box.write(1, key="a")
    [bundle] = _claim(storage)
    box.write(3, key="a")
    assert drained(storage, Receiver()).sent == 0
    begun = storage.begin(bundle)
    storage.settle(bundle.lease, "orders", [Verdict(Ticket(id, 1, ""), Step.SENT) for id in begun])
    assert storage.anything_due()
    assert drained(storage, Receiver()).sent == 3


@pytest.mark.parametrize("first_commits_first", [True, False])
def test_a_later_writer_waits_for_an_earlier_one(box: Box, storage: Store, first_commits_first: bool) -> None:
    with psycopg.connect(box.url) as first, psycopg.connect(box.url) as second:
        box.write(1, on=first, key="a")
        box.write(1, on=second, key="a")
        box.write(1, on=second, key="b")
        receiver = Receiver()
        for writer in (first, second) if first_commits_first else (second, first):
            drained(storage, receiver)
            writer.commit()
        drained(storage, receiver)
    of_a = [number for number, message in zip(numbers(box, receiver), receiver.got, strict=True) if message.key == "a"]
    assert of_a == [1, 2]
    assert len(receiver.got) == 3
    box.check_books()


def test_a_writer_that_is_open_over_the_turn_of_the_day_is_waited_for(box: Box, storage: Store) -> None:
    with psycopg.connect(box.url) as early:
        box.write(1, on=early, key="a")
        box.connection.execute("SELECT setval('outbox_seq', 4294967296)")
        box.write(1, key="a")
        assert drained(storage, Receiver()).sent == 0
        early.commit()
    receiver = Receiver()
    assert drained(storage, receiver).sent == 2
    assert numbers(box, receiver) == [1, 4294967297]


def test_a_failed_head_holds_its_key_until_it_was_sent(box: Box, storage: Store) -> None:
    box.write(3, key="a")
    drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
    assert [box.where(seq) for seq in (1, 2, 3)] == [["waiting"], ["held"], ["held"]]
    box.write(1, key="a")
    assert drained(storage, Receiver()).sent == 0
    box.rows("UPDATE outbox_waiting SET due = now() RETURNING 1")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 4
    assert numbers(box, receiver) == [1, 2, 3, 4]
    box.check_books()


@pytest.mark.parametrize(("on_dead", "sent"), [("block", 0), ("skip", 3)])
def test_a_dead_head_blocks_its_key_or_not(box: Box, settings: MakeSettings, on_dead: str, sent: int) -> None:
    destinations = {"orders": {"url": "redis+stream://localhost/x", "on_dead": on_dead}}
    storage = Store.connect(settings(database_schema=box.schema, destinations=destinations))
    box.write(1, key="a")
    drained(storage, Receiver(lambda message: Outcome.dead("bad", "never")))
    box.write(3, key="a")
    box.write(1, key="b")
    receiver = Receiver()
    assert drained(storage, receiver).sent == sent + 1
    assert box.where(1) == ["dead"]
    storage.close()
    box.check_books()


def test_a_scheduled_message_holds_only_what_is_behind_it(box: Box, storage: Store) -> None:
    box.write(2, key="a")
    box.write(1, key="a", delay=3600)
    box.write(2, key="a")
    receiver = Receiver()
    assert drained(storage, receiver).sent == 2
    assert drained(storage, receiver).sent == 0
    assert box.where(3) == ["waiting"]
    box.rows("UPDATE outbox_waiting SET due = now(), since = now() RETURNING 1")
    assert drained(storage, receiver).sent == 3
    assert numbers(box, receiver) == [1, 2, 3, 4, 5]
    box.check_books()


def test_a_message_without_attempts_left_dies_and_does_not_lose_those_behind_it(
    box: Box, settings: MakeSettings
) -> None:
    destinations = {"orders": {"url": "redis+stream://localhost/x", "on_dead": "skip", "max_bytes": 100}}
    storage = Store.connect(settings(database_schema=box.schema, destinations=destinations))
    box.write(1, key="a", text="x" * 5_000_000)
    box.write(2, key="a")
    assert drained(storage, Receiver()).sent == 2
    assert box.where(1) == ["dead"]
    storage.close()


def test_a_newer_message_replaces_one_that_failed(box: Box, storage: Store) -> None:
    box.write(1, key="a", latest=True)
    drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
    box.write(1, key="a", latest=True)
    drained(storage, Receiver())
    box.rows("UPDATE outbox_waiting SET due = now() RETURNING 1")
    receiver = Receiver()
    drained(storage, receiver)
    assert [box.where(1), box.where(2)] == [["discarded"], ["sent"]]
    assert numbers(box, receiver) == [2]


def test_nothing_is_due_while_a_writer_may_still_write_before_it(box: Box, storage: Store) -> None:
    with psycopg.connect(box.url) as early:
        box.write(1, on=early, key="a")
        box.write(2, key="a")
        assert storage.anything_due()
        assert drained(storage, Receiver()).sent == 0
        assert not storage.anything_due()
        assert box.where(2) == ["ready"]
        early.commit()
    assert storage.anything_due()
    assert drained(storage, Receiver()).sent == 3
    assert not storage.anything_due()


def test_a_row_that_somebody_has_locked_is_not_overtaken(box: Box, storage: Store) -> None:
    box.write(3, key="a")
    box.write(1, key="b")
    with psycopg.connect(box.url) as other:
        other.execute(f"SELECT FROM {box.schema}.outbox_ready WHERE seq = 1 FOR UPDATE")
        assert drained(storage, Receiver()).sent == 1
    receiver = Receiver()
    assert drained(storage, receiver).sent == 3
    assert numbers(box, receiver) == [1, 2, 3]


def test_a_flood_of_one_kind_does_not_starve_the_other(box: Box, storage: Store) -> None:
    box.write(100)
    for n in range(100):
        box.write(1, key=f"k{n}")
    token = "00000000-0000-4000-8000-000000000005"
    kinds = [{row.key is None for row in storage.claim({"orders": 20}, token, lambda _: [])[0]} for _ in range(2)]
    assert kinds == [{False}, {True}]


@pytest.mark.parametrize("how", ["is taken back", "is ended early"])
def test_a_key_is_busy_while_another_has_not_committed_what_it_does_to_its_lease(
    box: Box, storage: Store, how: str
) -> None:
    box.write(1, key="a")
    assert len(_claim(storage)) == 1
    box.write(1, key="a")
    past = "UPDATE outbox_leases SET locked_until = clock_timestamp() - interval '1 second'"
    with psycopg.connect(box.url, options=f"-c search_path={box.schema}") as other:
        if how == "is taken back":
            box.connection.execute(past)
            box.run("claim/expire.sql", other, most=10, messages=10, since="-infinity")
        else:
            other.execute(past.encode())
        assert _claim(storage) == []
        other.commit()
        if how == "is ended early":
            storage._look_after = dict  # type: ignore[method-assign]
            assert _claim(storage) == []


@pytest.mark.parametrize("step", [Step.SENT, Step.DISCARDED])
def test_a_settle_marks_what_was_held_while_it_waited(box: Box, storage: Store, step: Step) -> None:
    box.write(2, key="a")
    [bundle] = _claim(storage)
    verdicts = [Verdict(Ticket(id, 1, ""), step, code="done") for id in storage.begin(bundle)]
    with ThreadPoolExecutor(1) as pool, psycopg.connect(box.url) as claim:
        claim.execute(f"SET search_path = {box.schema}")
        claim.execute("SELECT FROM outbox_leases FOR KEY SHARE")
        settled = pool.submit(storage.settle, bundle.lease, "orders", verdicts)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        eventually(lambda: box.value(waits, f'%"{box.schema}".outbox_leases%') == 1)
        claim.execute(
            "INSERT INTO outbox_held (destination, key, seq, since, size) VALUES ('orders', 'a', 3, now(), 2)"
        )
        claim.commit()
        settled.result()
    assert box.rows("SELECT seq, free FROM outbox_held") == [(3, True)]


def test_a_settle_waits_for_nobody_who_has_locked_what_is_held(box: Box, storage: Store) -> None:
    """It leaves a note, and the next claim marks the row."""
    box.write(2, key="a")
    [bundle] = _claim(storage)
    box.write(1, key="a")
    box.write(1, key="b")
    assert len(_claim(storage)) == 1
    with psycopg.connect(box.url) as other:
        other.execute(f"SELECT FROM {box.schema}.outbox_held WHERE seq = 3 FOR UPDATE")
        sent = [Verdict(Ticket(id, 1, ""), Step.SENT) for id in storage.begin(bundle)]
        assert storage.settle(bundle.lease, "orders", sent)
        assert _claim(storage) == []
    assert box.rows("SELECT destination, key FROM outbox_freed") == [("orders", "a")]
    receiver = Receiver()
    assert storage.anything_due()
    assert drained(storage, receiver).sent == 1
    assert numbers(box, receiver) == [3]
    assert not box.rows("SELECT FROM outbox_freed")


class Ordered:
    """A destination that sees whether a key is sent by two at once, or out of order."""

    def __init__(self, box: Box, seed: int) -> None:
        self.random, self.box, self.lock = random.Random(seed), box, threading.Lock()
        self.busy: set[str | None] = set()
        self.first: dict[str | None, list[str]] = defaultdict(list)
        self.faults: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        keys = {message.key for message in messages}
        with self.lock:
            self.faults += [f"two send {key}" for key in keys & self.busy]
            self.busy |= keys
            fates = [self.random.random() for _ in messages]
        time.sleep(fates[0] / 50)
        with self.lock:
            for message, fate in zip(messages, fates, strict=True):
                if fate < 0.93 and message.id not in self.first[message.key]:
                    self.first[message.key].append(message.id)
            self.busy -= keys
        return [Outcome.sent() if fate < 0.93 else Outcome.outage("down", "no answer") for fate in fates]


@pytest.fixture
def storages(next_settings: Settings) -> Iterator[list[Store]]:
    made = [Store.connect(next_settings.model_copy(update={"breaker_failures": 10**6})) for _ in range(3)]
    yield made
    for one in made:
        one.close()


def _transaction(chance: random.Random) -> Transaction:
    fate, key = chance.random(), chance.randint(0, 4)
    keys = [f"k{(key + n) % 5}" for n in range(chance.randint(1, 5))]
    return Transaction([{"key": key} for key in keys], fate / 20, rolled_back=fate < 0.1)


@pytest.mark.parametrize("window", [1000, 8])
@pytest.mark.parametrize("seed", range(4))
def test_order_holds_in_a_race(
    box: Box, storages: list[Store], seed: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lanes, keyed):
        monkeypatch.setattr(module, "FRONT", 1e9)  # no look from the front comes to help
    monkeypatch.setattr(claim, "BATCH", window)
    monkeypatch.setattr(claim, "LEAST", window)
    destination, chance = Ordered(box, seed), random.Random(seed)
    plans = [[_transaction(chance) for _ in range(25)] for _ in range(8)]

    def take_back() -> None:
        """As a person or an application does; some think again."""
        with psycopg.connect(box.url) as connection:
            connection.execute(f"SET search_path = {box.schema}")
            some = "SELECT array_agg(id) FROM (SELECT id FROM outbox_messages ORDER BY random() LIMIT 3) m"
            connection.execute(f"SELECT outbox_cancel(({some}))")
            time.sleep(destination.random.random() / 50)
            if destination.random.random() < 0.7:
                connection.rollback()

    race(box, storages, destination, plans, [take_back])
    assert destination.faults == []
    of = {str(id): seq for id, seq in box.rows("SELECT id, seq FROM outbox_messages")}
    for ids in destination.first.values():
        found = [of[id] for id in ids]
        assert found == sorted(found)
