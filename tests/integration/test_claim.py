"""What a claim sends on: singles, or drains."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import pytest
from sqlalchemy import text

from outbox_tasks.errors import BrokerUnreachable, DatabaseTooSlow
from outbox_tasks.model import Single, Slot, Step, Verdict
from outbox_tasks.relay.claim import MANY_DUE, QUEUED_A_SECOND, QUEUED_AT_MOST, Pace, _shared, claim
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Due
from tests.claims import begin, claimed, keep_house, take_batch
from tests.conftest import MakeStore, Rows, seconds_from_now


def test_no_more_singles_are_claimed_than_slow_workers_begin_before_the_leases_run_out(
    new_store: MakeStore, rows: Rows
) -> None:
    """If more were queued, slow workers would meet only leases that have run out, for ever."""
    rows.insert(100)
    store = new_store(singles="all", queue_lease=5)
    assert claimed(store, queued=5 * QUEUED_A_SECOND + 7) == ([], [])
    assert len(claimed(store)[0]) == 5 * QUEUED_A_SECOND


@pytest.mark.parametrize(
    ("singles", "own", "tasks"),
    [(0, None, (0, 1)), ("all", None, (60, 0)), (59, None, (0, 1)), (60, None, (60, 0)), ("all", 0, (0, 1))],
)
def test_the_dial_says_how_many_travel_singly_and_each_destination_may_have_its_own(
    new_store: MakeStore, rows: Rows, singles: int | str, own: int | str | None, tasks: tuple[int, int]
) -> None:
    rows.insert(60)
    store = new_store(singles=singles, destinations={"orders": {"url": "a://b", "singles": own}})
    found = claimed(store)
    assert (len(found[0]), len(found[1])) == tasks


def test_a_drain_has_its_slot_until_it_ends_or_if_it_was_killed_until_its_time_is_over(
    new_store: MakeStore, rows: Rows
) -> None:
    rows.insert(100)
    store = new_store()
    _, [killed] = claimed(store)
    assert store.claims.begin_drain(killed)
    assert not store.claims.begin_drain(killed)  # its task comes twice
    assert claimed(store) == ([], [])
    with rows.engine.begin() as connection:
        schema = store.settings.database_schema
        connection.execute(text(f"UPDATE {schema}.outbox_drains SET until = now() - interval '1 second'"))
    _, [following] = claimed(store)
    assert following.token != killed.token
    assert not store.claims.begin_drain(killed)
    store.claims.end_drain(killed)  # this does not free the slot of its successor
    assert store.claims.begin_drain(following)
    store.claims.end_drain(following)
    assert len(claimed(store)[1]) == 1


@pytest.mark.parametrize(("count", "drains"), [(60, 1), (MANY_DUE, 3)])
def test_of_much_all_slots_are_used_and_of_less_one(new_store: MakeStore, rows: Rows, count: int, drains: int) -> None:
    rows.insert(count)
    store = new_store(destinations={"orders": {"url": "a://b", "concurrency": 3}})
    assert [len(claimed(store)[1]) for _ in range(2)] == [drains, 0]


def test_a_destination_that_is_not_known_to_be_quick_leaves_a_process_to_the_others(
    new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(destinations={name: {"url": "a://b"} for name in ("orders", "mails")})
    monkeypatch.setattr(store.traffic, "_count_processes", lambda: 4)
    monkeypatch.setattr("outbox_tasks.relay.claim.SLOW_SENDS_LOOKED_FOR_SECONDS", 0.0)
    rows.insert(3)
    pace = Pace()
    sent: list[Single] = []

    def look() -> int:
        found = claimed(store, pace=pace)[0]
        sent.extend(found)
        return len(found)

    assert look() == 3
    rows.insert(17)
    assert look() == 0
    assert [single.more for single in sent].count(True) == 1  # what found no room need not wait for beat
    message = begin(store, sent[0])
    assert message
    retry = Verdict(message, Step.RETRY, 30.0)
    store.leases.settle(sent[0].token, "orders", [retry])
    sent[0] = sent[0]._replace(token=retry.token or "")
    assert look() == 1  # a single that waits for its retry is not on its way
    for single in sent:
        message = begin(store, single)
        assert message
        store.leases.settle(single.token, "orders", [Verdict(message, Step.SENT)])
    assert look() == 16  # all that was sent before has ended
    assert not any(single.more for single in sent[4:])
    begin(store, sent[4])
    with rows.engine.begin() as connection:
        schema = store.settings.database_schema
        slow = f"UPDATE {schema}.outbox_leases SET begun_at = begun_at - interval '1 second' WHERE begun_at IS NOT NULL"
        connection.execute(text(slow))
    rows.insert(20)
    look()
    assert not [single for single in sent[5:20] if begin(store, single)]  # what waited in the queue was given back
    assert len(sent) - 20 <= 3
    assert rows.one(sent[4].id).locked_by  # it is being sent, and was not given back


def test_destinations_share_the_room_in_the_publish_queue(new_store: MakeStore, rows: Rows) -> None:
    store = new_store(singles="all", destinations={name: {"url": "a://b"} for name in ("orders", "mails")})
    for name in store.settings.destinations:
        rows.insert(QUEUED_AT_MOST - 50, destination=name)
    assert len(claimed(store)[0]) == QUEUED_AT_MOST


def test_unknown_destinations_are_looked_for_seldom_and_end_no_claim(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, slow = Pace(), Mock(side_effect=DatabaseTooSlow(url="here", reason="slow"))
    monkeypatch.setattr(store.claims, "bury", slow)
    rows.insert()
    assert [len(claimed(store, pace=pace)[0]) for _ in range(2)] == [1, 0]
    assert slow.call_count == 1


def test_a_destination_behind_many_that_nobody_knows_is_found(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.relay.store.claims.DESTINATIONS_AT_ONCE", 4)
    rows.insert(40, destination=text("'a-' || generate_series"))
    rows.insert()
    assert sum(len(claimed(store)[0]) for _ in range(15)) == 1


def test_a_share_is_no_larger_than_what_was_granted() -> None:
    due = Due("orders", True, keyless=2, alone=1, new=5, held=3, drains=0, shut=False, probe=False)
    assert [_shared(due, most)[:3] for most in (2, 5, 9)] == [(2, 0, 0), (3, 2, 0), (3, 3, 3)]


def test_what_was_taken_back_is_told_once_and_goes_with_what_was_due(new_store: MakeStore, rows: Rows) -> None:
    rows.insert()
    claimed(new_store())
    rows.change(locked_until=seconds_from_now(-1))
    rows.insert()
    store = new_store()
    tallies = [claim(store, lambda *_: None, lambda: 0, Pace(["orders"])) for _ in range(2)]
    assert [(tally.singles, tally.expired) for tally in tallies] == [(2, {("orders", "lease_expired"): 1}), (0, {})]


def test_a_broker_that_refuses_leaves_no_lease_and_no_slot(new_store: MakeStore, rows: Rows) -> None:
    rows.insert(3)
    rows.insert(100, destination="mails")
    store = new_store(destinations={name: {"url": "a://b"} for name in ("orders", "mails")})

    def refuse(singles: Sequence[Single], drains: Sequence[Slot]) -> None:
        assert singles
        assert drains
        raise BrokerUnreachable(url="redis://gone", reason="refused")

    with pytest.raises(BrokerUnreachable):
        claim(store, refuse, lambda: 0, Pace(store.settings.destinations))
    keep_house(store)
    singles, drains = claimed(store)
    assert (len(singles), len(drains)) == (3, 1)
    assert {row.last_error_code for row in rows.hot()} == {None}


def test_a_drain_puts_back_what_its_batch_did_not_need(new_store: MakeStore, rows: Rows) -> None:
    store = new_store(destinations={"orders": {"url": "redis+stream://localhost/0/x", "rate_limit": 20}})
    for count in (1, 15):
        rows.insert(count)
        assert len(take_batch(store).messages) == count


def test_a_drain_that_sends_one_message_at_a_time_takes_those_with_keys_too(
    new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.relay.store.takes.batch_size_of", lambda destination: 1)
    rows.insert(key="a")
    assert len(take_batch(new_store(destinations={"orders": {"url": "a://b"}})).messages) == 1
