"""Messages that share a key arrive in the order in which they were numbered, one run at a time."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from outbox_tasks.model import LeasedMessage, Outcome, Step, Verdict
from outbox_tasks.operating.messages.acts import Action
from outbox_tasks.relay.store import Store, lanes, takes
from outbox_tasks.settings import Settings
from tests.claims import begin, take, take_batch
from tests.conftest import MakeSettings
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.relaying import Receiver, Transaction, drained, end_waits, numbers, race
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, entry
from tests.storage.test_acts import acting as acting
from tests.storage.test_drain import FAILED, sent

DEAD = Outcome.dead("bad", "never")
AWAY, LATER = Outcome.outage("down", "no answer"), Outcome.retry("busy", "later", retry_after=900)

MakeStorage = Callable[..., Store]


@pytest.fixture
def make_storage(box: Box, settings: MakeSettings) -> Iterator[MakeStorage]:
    """Makes stores with their own values of the destination."""
    made: list[Store] = []

    def make(**values: object) -> Store:
        destinations = {"orders": {"url": "redis+stream://localhost/x", **values}}
        made.append(Store.connect(settings(database_schema=box.schema, destinations=destinations)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def settle(storage: Store, messages: Sequence[LeasedMessage], token: str, step: Step = Step.SENT) -> bool:
    """Settle all of them. Returns whether more of their keys is due."""
    return storage.leases.settle(token, "orders", [Verdict(message, step) for message in messages])[1]


def busy(box: Box) -> list[tuple[str, bool]]:
    """The keys that have a row, and whether somebody has them."""
    return box.rows("SELECT key, token IS NOT NULL FROM outbox_keys ORDER BY key")  # type: ignore[return-value]


def held_behind_a_single(box: Box, storage: Store, count: int, **values: object) -> None:
    """Write so many messages while a single has their key; then the single arrives."""
    box.write(1, key="a")
    [single] = take(storage, {"orders": 10})
    box.write(count, key="a", **values)
    assert not take_batch(storage).messages
    message = begin(storage, single)
    assert message
    settle(storage, [message], single.token)
    assert box.where(2) == ["held"]


def test_what_is_behind_a_batch_stays_in_ready_and_goes_after_it(box: Box, storage: Store) -> None:
    box.write(2, key="a")
    batch = take_batch(storage)
    box.write(2, key="a")
    box.write(1, key="b")
    receiver = Receiver()
    assert sent(storage, receiver) == 1
    assert numbers(box, receiver) == [5]
    assert box.where(3) == box.where(4) == ["ready"]
    assert not settle(storage, batch.messages, batch.token)
    assert sent(storage, receiver) == 2
    assert numbers(box, receiver) == [5, 3, 4]
    box.check_books()


def test_of_few_keys_each_of_two_drains_finds_some(box: Box, storage: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(storage.takes._sizes, "orders", (10, 10))
    for n in range(60):
        box.write(1, key=f"k{n % 4}")
    batches = [take_batch(storage) for _ in range(2)]
    assert [{message.key for message in batch.messages} for batch in batches] == [{"k0", "k1"}, {"k2", "k3"}]
    assert [len(batch.messages) for batch in batches] == [10, 10]
    assert {place for (place,) in map(box.where, range(1, 61))} == {"leases", "ready"}
    monkeypatch.setitem(storage.takes._sizes, "orders", (10, 3))
    for batch in batches:
        settle(storage, batch.messages, batch.token)
    batches = [take_batch(storage)]
    assert sorted(Counter(message.key for message in batches[0].messages).values()) == [2, 2, 3, 3]
    settle(storage, batches[0].messages, batches[0].token)
    assert sent(storage, Receiver()) == 30
    box.check_books()


def test_a_key_with_much_does_not_hide_others_that_are_behind_it(
    box: Box, storage: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(storage.takes._sizes, "orders", (10, 10))
    box.write(100, key="much")
    box.write(1, key="little")
    batch = take_batch(storage)
    assert [message.key for message in take_batch(storage).messages] == ["little"]
    assert sum(box.where(n) == ["held"] for n in range(1, 101)) >= 80
    settle(storage, batch.messages, batch.token)
    assert sent(storage, Receiver()) == 90
    monkeypatch.setitem(storage.takes._sizes, "orders", (10, 3))
    box.write(20, key="more")
    batch = take_batch(storage)
    settle(storage, batch.messages, batch.token)
    assert (len(batch.messages), sent(storage, Receiver())) == (3, 17)


def test_after_a_crash_that_undid_a_take_its_messages_go_first(box: Box, storage: Store) -> None:
    box.write(1, key="a")
    [row] = box.rows("SELECT destination, key, seq, since, size FROM outbox_ready")
    take_batch(storage)
    for table in ("leases", "keys"):
        box.connection.execute(f"DELETE FROM outbox_{table}".encode())
    undone = "INSERT INTO outbox_ready (destination, key, seq, since, size) VALUES (%s, %s, %s, %s, %s)"
    box.connection.execute(undone, row)
    storage.takes._progress.places.of("orders").life = "before the crash"
    box.write(1, key="a")
    assert [message.seq for message in take_batch(storage).messages] == [1, 2]


def test_singles_are_the_first_message_of_each_key(box: Box, storage: Store) -> None:
    for key in ("a", "b", "a", "a"):
        box.write(1, key=key)
    singles = take(storage, {"orders": 10})
    messages = [begin(storage, single) for single in singles]
    assert [message.seq for message in messages if message] == [1, 2]
    assert take(storage, {"orders": 10}) == []
    more = [
        settle(storage, [message], single.token) for single, message in zip(singles, messages, strict=True) if message
    ]
    assert more == [True, False]
    [single] = take(storage, {"orders": 10})
    following = begin(storage, single)
    assert following
    assert (following.seq, box.where(4)) == (3, ["held"])


def test_a_single_that_celery_retries_keeps_its_key(box: Box, storage: Store) -> None:
    box.write(2, key="a")
    [single] = take(storage, {"orders": 10})
    message = begin(storage, single)
    assert message
    retry = Verdict(message, Step.RETRY, 10, "busy", "later")
    storage.leases.settle(single.token, "orders", [retry])
    assert not take_batch(storage)
    again = storage.leases.begin(retry.token or "", "orders")
    assert again
    assert again.attempts == 2
    settle(storage, [again], retry.token or "")
    assert [message.seq for message in take_batch(storage).messages] == [2]


def test_what_is_behind_a_message_that_may_have_killed_a_worker_waits_for_it(box: Box, storage: Store) -> None:
    held_behind_a_single(box, storage, 3)
    assert [message.seq for message in take_batch(storage).messages] == [2, 3, 4]
    box.rows("UPDATE outbox_leases SET locked_until = now() RETURNING 1")
    found = []
    while batch := take_batch(storage):
        found.append([message.seq for message in batch.messages])
        settle(storage, batch.messages, batch.token)
    assert found == [[2], [3], [4]]


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


def test_a_failed_head_holds_its_key_until_it_was_sent(box: Box, storage: Store) -> None:
    box.write(3, key="a")
    drained(storage, Receiver(lambda message: FAILED))
    assert [box.where(seq) for seq in (1, 2, 3)] == [["held"]] * 3
    box.write(1, key="a")
    assert sent(storage, Receiver()) == 0
    end_waits(box)
    receiver = Receiver()
    assert sent(storage, receiver) == 4
    assert numbers(box, receiver) == [1, 2, 3, 4]
    box.check_books()


@pytest.mark.parametrize(("on_dead", "count"), [("block", 0), ("skip", 3)])
def test_a_dead_head_blocks_its_key_or_not(box: Box, make_storage: MakeStorage, on_dead: str, count: int) -> None:
    storage = make_storage(on_dead=on_dead)
    box.write(1, key="a")
    drained(storage, Receiver(lambda message: DEAD))
    assert busy(box) == ([("a", False)] if on_dead == "block" else [])
    box.write(3, key="a")
    box.write(1, key="b")
    assert sent(storage, Receiver()) == count + 1
    assert box.where(1) == ["dead"]
    box.connection.execute("UPDATE outbox_keys SET due = '-infinity'")  # a take looks, and sees the dead letter
    assert sent(storage, Receiver()) == 0
    box.check_books()


@pytest.mark.parametrize(("on_dead", "count"), [("block", 0), ("skip", 1)])
def test_keys_are_free_once_dead_letters_no_longer_block(
    box: Box, make_storage: MakeStorage, on_dead: str, count: int
) -> None:
    box.write(2, key="a")
    drained(make_storage(), Receiver(lambda message: DEAD))
    assert sent(make_storage(on_dead=on_dead), Receiver()) == count
    assert len(busy(box)) == 1 - count


def test_a_key_of_which_nothing_is_left_loses_its_row(box: Box, storage: Store) -> None:
    box.write(2, key="a")
    drained(storage, Receiver(lambda message: FAILED))
    box.rows("SELECT outbox_cancel(ARRAY(SELECT id FROM outbox_messages))")
    assert busy(box) == [("a", False)]
    assert [row.total for row in storage.claims.due(10)] == [1]
    assert take(storage, {"orders": 10}) == []
    assert busy(box) == []


def test_a_dead_run_leaves_its_key_to_a_redrive_or_nobody(box: Box) -> None:
    """Though nothing is behind it; the redrive of an earlier message may have come meanwhile."""
    for due in ("infinity", "2030-01-01 00:00:00+00"):
        taken = "INSERT INTO outbox_keys (destination, key, token, due) VALUES ('orders', %s, gen_random_uuid(), %s)"
        box.connection.execute(taken, (due, due))
        box.rows("SELECT outbox_free('orders', %s, 'infinity')", due)
    assert box.value("SELECT bool_and(token IS NULL AND due = key::timestamptz) AND count(*) = 2 FROM outbox_keys")


def test_a_scheduled_message_holds_only_what_is_behind_it(box: Box, storage: Store) -> None:
    box.write(2, key="a")
    box.write(1, key="a", delay=3600)
    box.write(2, key="a")
    receiver = Receiver()
    assert sent(storage, receiver) == 2
    assert sent(storage, receiver) == 0
    assert box.where(3) == ["held"]
    end_waits(box)
    assert sent(storage, receiver) == 3
    assert numbers(box, receiver) == [1, 2, 3, 4, 5]
    box.check_books()


def test_a_scheduled_message_that_was_held_waits_for_its_time(box: Box, storage: Store) -> None:
    held_behind_a_single(box, storage, 1, delay=3600)
    assert sent(storage, Receiver()) == 0
    end_waits(box)
    assert sent(storage, Receiver()) == 1


def test_a_newer_message_replaces_one_that_failed(box: Box, storage: Store) -> None:
    box.write(1, key="a", latest=True)
    drained(storage, Receiver(lambda message: FAILED))
    box.write(1, key="a", latest=True)
    drained(storage, Receiver())
    end_waits(box)
    receiver = Receiver()
    drained(storage, receiver)
    assert [box.where(1), box.where(2)] == [["discarded"], ["sent"]]
    assert numbers(box, receiver) == [2]


@pytest.mark.parametrize("how", ["free", "held"])
def test_what_an_application_takes_back_makes_no_take_wait(
    box: Box, storage: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message of a key is locked: what is behind it waits, and other keys do not."""
    box.write(2, key="a")
    if how == "held":
        drained(storage, Receiver(lambda message: FAILED))
    with box.transaction() as application:
        assert application.execute(
            "SELECT outbox_cancel(ARRAY(SELECT id FROM outbox_messages WHERE seq = 1))"
        ).fetchall()
        box.write(1, key="b")
        began = time.monotonic()
        receiver = Receiver()
        assert sent(storage, receiver) == 1
        assert time.monotonic() - began < 2
        application.rollback()
    end_waits(box)
    assert sent(storage, receiver) == 2
    assert numbers(box, receiver) == [3, 1, 2]
    box.check_books()


@pytest.mark.parametrize("looks", [None, "now()", "'-infinity'"])
@pytest.mark.parametrize("head", ["scheduled", "failed", "dead"])
def test_a_head_that_is_taken_back_in_a_long_transaction_frees_its_key_at_once(
    box: Box, storage: Store, head: str, looks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take meanwhile, and go on behind the time at which it was taken back; or they find its key due, and the
    head locked."""
    monkeypatch.setattr(takes, "FREED_LATELY", timedelta(0))
    box.write(1, key="a", delay=3600 if head == "scheduled" else None)
    box.write(1, key="a")
    answer = DEAD if head == "dead" else FAILED
    drained(storage, Receiver(lambda message: answer))
    assert [box.where(1), box.where(2)] == [["dead" if head == "dead" else "held"], ["held"]]
    if looks:
        box.rows(f"UPDATE outbox_keys SET due = {looks} RETURNING 1")  # as a settle or another redrive leaves it
    with box.transaction() as application:
        first = "ARRAY(SELECT id FROM outbox_messages WHERE seq = 1)"
        discard = f"SELECT outbox_discard({first}, true, 'infinity', '{{}}', 'gone', 'gone')"
        assert application.execute(discard.encode()).fetchall()
        assert sent(storage, Receiver()) == 0
        application.commit()
    assert looks or [row.held for row in storage.claims.due(10)] == [1]
    assert sent(storage, Receiver()) == 1
    assert busy(box) == []
    box.check_books()


@pytest.mark.parametrize(("keys", "kinds"), [(1, "nnnnnknn"), (3, "nnnnnknk")])
def test_takes_of_each_kind_come_in_turns_after_a_kind_that_was_missing_is_found(
    box: Box, storage: Store, keys: int, kinds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(storage.takes._sizes, "orders", (10, 10))
    assert not any(take_batch(storage) for _ in range(2))
    box.write(100)
    for n in range(30):
        box.write(1, key=f"k{n % keys}")
    assert "".join("n" if take_batch(storage).messages[0].key is None else "k" for _ in kinds) == kinds


class Ordered:
    """A destination that sees whether a key is sent by two at once, or out of order. Some sends fail, and some of these
    for long, or for ever."""

    def __init__(self, seed: int) -> None:
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.busy: set[str | None] = set()
        self.first: dict[str | None, list[str]] = defaultdict(list)
        self.sent: Counter[str] = Counter()
        self.faults: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        keys = {message.key for message in messages} - {None}
        with self.lock:
            self.faults += [f"two send {key}" for key in keys & self.busy]
            pause = self.random.random() / 50
            outcomes = self.random.choices((Outcome.sent(), AWAY, LATER, DEAD), (93, 3, 3, 1), k=len(messages))
            self.sent.update(message.id for message in messages)
            self.busy |= keys
        time.sleep(pause)
        with self.lock:
            for message, outcome in zip(messages, outcomes, strict=True):
                if outcome.result == "sent" and message.id not in self.first[message.key]:
                    self.first[message.key].append(message.id)
            self.busy -= keys
        return outcomes


@pytest.fixture
def storages(next_settings: Settings) -> Iterator[list[Store]]:
    made = [Store.connect(next_settings.model_copy(update={"breaker_failures": 10**6})) for _ in range(3)]
    yield made
    for one in made:
        one.close()


def _transaction(chance: random.Random) -> Transaction:
    fate, key = chance.random(), chance.randint(0, 4)
    keys = [f"k{(key + n) % 5}" for n in range(chance.randint(1, 5))]
    rows = [*({"key": key} for key in keys), *({} for _ in range(chance.randint(0, 10)))]
    return Transaction(rows, fate / 20, rolled_back=fate < 0.1)


@pytest.mark.parametrize(("seed", "size"), [(0, (1000, 100)), (1, (8, 3))])
def test_in_a_race_all_that_is_committed_arrives_and_each_key_in_its_order(
    box: Box, storages: list[Store], acting: Acting, seed: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among writers, relays, and people who redrive, discard and try. What waits is due once a person tries it."""
    monkeypatch.setattr(lanes, "FROM_FRONT_SECONDS", 1e9)  # no look from the front comes to help
    for each in storages:
        each.takes._sizes["orders"] = size
    destination, chance = Ordered(seed), random.Random(seed)
    plans = [[_transaction(chance) for _ in range(25)] for _ in range(8)]

    def take_back() -> None:
        """As a person or an application does; some think again. A message without a key that was locked meanwhile is
        found by the next look from the front, which never comes here."""
        with psycopg.connect(box.url) as connection:
            connection.execute(f"SET search_path = {box.schema}")
            some = "SELECT id FROM outbox_messages WHERE key IS NOT NULL ORDER BY random() LIMIT 3"
            connection.execute(f"SELECT outbox_cancel(ARRAY({some}))")
            time.sleep(destination.random.random() / 50)
            if destination.random.random() < 0.7:
                connection.rollback()

    def act(action: Action, state: str, share: float) -> None:
        with psycopg.connect(box.url, options=f"-c search_path={box.schema}", autocommit=True) as looking:
            found = looking.execute("SELECT id FROM outbox_at_work WHERE state = %s ORDER BY random()", [state])
            ids = [id for [id] in found if destination.random.random() < share]
        acting.act_on(action, ids, ANN, entry(box, action))  # an act tries a message once

    people = [
        partial(act, "try", "retrying", 1),
        partial(act, "redrive", "dead", 1),
        partial(act, "discard", "dead", 0.1),
    ]
    race(box, storages, destination, plans, [take_back, *people])
    assert destination.faults == []
    assert busy(box) == []
    of = {str(id): seq for id, seq in box.rows("SELECT id, seq FROM outbox_messages")}
    for key, ids in destination.first.items():
        found = [of[id] for id in ids]
        assert found == sorted(found) or key is None
    named = "SELECT m.id::text FROM outbox_trouble t JOIN outbox_messages m USING (seq) WHERE t.history @> %s"
    causes = {id for code in ("down", "busy", "bad") for [id] in box.rows(named, json.dumps([{"code": code}]))}
    assert {id for id, times in destination.sent.items() if times > 1} <= causes
