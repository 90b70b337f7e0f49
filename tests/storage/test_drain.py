"""The relay over the storage, in one process: what is written arrives, and the books balance."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outbox_tasks.model import Outcome, Step
from outbox_tasks.relay.store import Store
from tests.claims import begin, keep_house, take, take_batch
from tests.conftest import eventually
from tests.storage.conftest import Box
from tests.storage.relaying import Receiver, drained, end_waits
from tests.storage.relaying import storage as storage

FAILED = Outcome.retry("busy", "later")


def sent(storage: Store, receiver: Receiver) -> int:
    """Send what is due. Returns how many messages were sent."""
    return drained(storage, receiver)[Step.SENT]


def test_what_an_open_transaction_wrote_is_found_when_it_commits(box: Box, storage: Store) -> None:
    with psycopg.connect(box.url) as early, psycopg.connect(box.url) as later:
        box.write(1, on=early)
        box.write(5, on=later)
        later.commit()
        assert sent(storage, Receiver()) == 5
        assert sent(storage, Receiver()) == 0
        early.commit()
    assert sent(storage, Receiver()) == 1


def test_a_batch_that_failed_in_part_is_settled_in_part(box: Box, storage: Store) -> None:
    box.write(6)
    fates = itertools.cycle(
        [
            Outcome.sent(),
            Outcome.retry("busy", "later"),
            Outcome.dead("bad", "never"),
            Outcome.discarded("gone", "no one"),
        ]
    )
    drained(storage, Receiver(lambda message: next(fates)))
    places = sorted(box.where(seq)[0] for seq in range(1, 7))
    assert places == ["dead", "discarded", "sent", "sent", "waiting", "waiting"]
    assert (
        box.rows("SELECT attempts, code, error FROM outbox_trouble WHERE seq IN (SELECT seq FROM outbox_waiting)")
        == [(1, "busy", "later")] * 2
    )
    box.check_books()


@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("column", ["paused_at", "opened_at"])
def test_nothing_begins_for_a_destination_that_gets_nothing(
    box: Box, storage: Store, column: str, key: str | None
) -> None:
    box.write(2, key=key)
    [single, *_] = take(storage, {"orders": 10})
    box.rows(f"INSERT INTO outbox_destinations (name, {column}) VALUES ('orders', now()) RETURNING 1")
    assert begin(storage, single) is None
    assert not take_batch(storage)
    storage.leases.give_back([single.token])
    assert not take_batch(storage)
    box.connection.execute("UPDATE outbox_ready SET alone = true WHERE key IS NULL")
    assert not take_batch(storage)
    assert not box.rows("SELECT FROM outbox_trouble")  # a lease that was given back leaves no note
    box.rows("DELETE FROM outbox_destinations RETURNING 1")
    assert sent(storage, Receiver()) >= 1
    box.check_books()


def test_of_two_claims_at_once_one_reserves_a_slot(box: Box, storage: Store) -> None:
    waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, 'drains') > 0"
    share = json.dumps([{"destination": "orders", "slots": 1, "wanted": 1}])
    with ThreadPoolExecutor(1) as pool, storage.transaction() as run:
        assert len(run("claim/reserve_slots.sql", share=share, holder=None, hold=60)) == 1
        other = pool.submit(storage.claims.reserve_slots, {"orders": (1, 1)})
        eventually(lambda: box.value(waiting))
    assert other.result() == []


def test_a_scheduled_message_waits(box: Box, storage: Store) -> None:
    box.write(1, delay=3600)
    assert box.where(1) == ["waiting"]
    assert sent(storage, Receiver()) == 0
    box.connection.execute("UPDATE outbox_waiting SET due = now() - interval '2 hours', alone = true")
    keep_house(storage)
    assert box.value("SELECT alone AND now() - since > interval '1 hour' FROM outbox_ready")  # since then it is due
    assert take(storage, {"orders": 1})
    box.connection.execute("UPDATE outbox_leases SET locked_until = now()")
    keep_house(storage)
    came_back = "SELECT r.since = deliver_at, history -> 0 ? 'by' FROM outbox_ready r JOIN outbox_messages USING (seq)"
    assert box.rows(f"{came_back} JOIN outbox_trouble USING (seq)") == [(True, True)]
    assert sent(storage, Receiver()) == 1


def test_outages_in_a_row_of_a_message_are_counted_anew_after_an_answer(box: Box, storage: Store) -> None:
    box.write(1)
    away = Outcome.outage("down", "no answer " * 40)
    for outcome in (away, away, FAILED, away):
        drained(storage, Receiver(lambda message, outcome=outcome: outcome))
        end_waits(box)
    noted = "SELECT attempts, spared, outages, length(history -> 0 ->> 'error') FROM outbox_trouble"
    assert box.rows(noted) == [(4, 3, 1, 300)]
    box.connection.execute("UPDATE outbox_trouble SET attempts = 40000, spared = 40000")
    drained(storage, Receiver(lambda message: away))
    assert box.value("SELECT attempts FROM outbox_waiting") == 30_000, "a smallint has room for it"


def test_a_message_whose_attempts_are_used_up_keeps_its_last_error(box: Box, storage: Store) -> None:
    box.write(1)
    box.connection.execute("INSERT INTO outbox_trouble (seq, attempts, code) VALUES (1, 99, 'unsettled')")
    receiver = Receiver()
    drained(storage, receiver)
    assert (receiver.got, box.where(1)) == ([], ["dead"])
    assert box.rows("SELECT code, history -> 0 ->> 'what' FROM outbox_trouble") == [("unsettled", "dead")]


def test_a_history_keeps_its_first_entry_and_its_last_ones(box: Box) -> None:
    long = "(SELECT jsonb_agg(jsonb_build_object('n', n)) FROM generate_series(1, 30) AS n)"
    noted = box.value(f'SELECT outbox_noted({long}, \'{{"n": 31, "by": null}}\')')
    assert noted == [{"n": n} for n in (1, *range(3, 32))]


@pytest.mark.parametrize("take_most", [10, 100])
def test_priorities_share_what_is_taken_singly_and_a_batch(
    box: Box, storage: Store, take_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for priority in ("low", "normal", "high"):
        box.write(100, priority=priority)
    singles = take(storage, {"orders": take_most})
    rank = {str(id): priority for id, priority in box.rows("SELECT id, priority FROM outbox_messages")}
    counts = [sum(rank[single.id] == priority for single in singles) for priority in (1, 0, -1)]
    assert counts == [take_most * 6 / 10, take_most * 3 / 10, take_most / 10]
    monkeypatch.setitem(storage.takes._sizes, "orders", (10, 10))
    ranks = Counter(rank[message.id] for message in take_batch(storage).messages)
    assert ranks == {1: 6, 0: 3, -1: 1}


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_has_no_more_bytes_than_one_statement_can_fetch_and_a_large_message_is_one(
    box: Box, storage: Store, keyed: bool
) -> None:
    for n, size in enumerate((1_000, 3_000_000, 3_000_000, 1_000, 5_000_000, 1_000)):
        box.write(1, key=f"k{n}" if keyed else None, text="x" * size)
    seqs = [[message.seq for message in take_batch(storage).messages] for _ in range(5)]
    assert [found for found in seqs if found] == [[1, 2], [3, 4], [5], [6]]


@pytest.mark.parametrize("key", [None, "a"])
def test_messages_to_an_unknown_destination_die_after_a_while(box: Box, storage: Store, key: str | None) -> None:
    box.write(2, destination="nowhere", key=key)
    box.write(1, destination="nowhere", key=key and "held")
    if key:
        box.rows("INSERT INTO outbox_keys (destination, key, more) VALUES ('nowhere', 'held', true) RETURNING 1")
        box.rows(
            "WITH gone AS (DELETE FROM outbox_ready WHERE key = 'held' RETURNING *) "
            "INSERT INTO outbox_held (destination, key, seq, since, size) "
            "SELECT destination, key, seq, since, size FROM gone RETURNING 1"
        )
    assert storage.claims.bury() == []
    box.rows("UPDATE outbox_ready SET since = now() - interval '2 hours' RETURNING 1")
    box.connection.execute("UPDATE outbox_held SET since = now() - interval '2 hours'")
    buried = storage.claims.bury()
    assert [row.destination for row in buried] == ["nowhere"] * 3
    assert [box.where(seq) for seq in (1, 2, 3)] == [["dead"]] * 3
    assert box.rows("SELECT DISTINCT code FROM outbox_trouble") == [("unknown_destination",)]
    box.check_books()


def test_writers_of_more_keys_than_have_a_mark_each_hold_up_all_and_never_wait_for_each_other(
    box: Box, storage: Store
) -> None:
    with box.transaction() as early, box.transaction() as later:
        for n in range(40):
            box.write(1, on=early, key=f"{n}")
            box.write(1, on=later, key=f"{39 - n}")
        box.write(1, key="another")
        later.commit()
        assert sent(storage, Receiver()) == 0
        early.commit()
    assert sent(storage, Receiver()) == 81


@pytest.mark.parametrize("other", [{"key": "b"}, {"key": "a", "delay": 3600}], ids=["of another key", "not due"])
def test_what_does_not_arrive_now_replaces_no_older_state(box: Box, storage: Store, other: dict[str, Any]) -> None:
    """One that is not due may be cancelled: then neither would arrive."""
    box.write(1, key="a", latest=True)
    drained(storage, Receiver(lambda message: FAILED))
    box.write(1, **other, latest=True)
    drained(storage, Receiver())
    box.connection.execute("UPDATE outbox_keys SET due = now() WHERE token IS NULL AND due < 'infinity'")
    box.connection.execute("UPDATE outbox_held SET since = now() WHERE seq = 1")
    drained(storage, Receiver())
    assert box.where(1) == ["sent"]
