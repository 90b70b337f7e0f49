"""Leases of singles and batches: who gets a message, who may say what became of it, and what is left on its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, func, select, text

from outbox_tasks.model import LeasedMessage, Single, Step, Verdict
from outbox_tasks.operating import retention
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import UNKNOWN_GRACE_SECONDS
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.settings.destination import CENTURY_SECONDS, WEEK_SECONDS
from tests.claims import begin, keep_house, take, take_batch
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import Lease

LONG_AGO = seconds_from_now(-2 * UNKNOWN_GRACE_SECONDS)

TIMES = ("infinity", "-infinity", "294276-12-31", "4713-01-01 BC")

OTHER = UUID(int=7)
"""The token of somebody else's lease."""

MakeSingle = Callable[..., Single]


@pytest.fixture
def single(store: Store, rows: Rows) -> MakeSingle:
    """Inserts a message and takes it singly."""

    def make(**columns: object) -> Single:
        [id] = rows.insert(**columns)
        [taken] = take(store, {"orders": 10})
        assert taken.id == id
        return taken

    return make


def begun(store: Store, single: Single) -> LeasedMessage:
    """The message of a single whose send begins."""
    message = begin(store, single)
    assert message
    return message


def settle(store: Store, token: str, *verdicts: Verdict) -> set[int]:
    """The numbers of the messages that were still ours."""
    return store.leases.settle(token, "orders", verdicts)[0]


def due_in(rows: Rows, id: str) -> float:
    """Seconds until the row is due, by the database's clock."""
    m = rows.tables.messages
    wait = func.extract("epoch", m.c.locked_until - func.clock_timestamp())
    with rows.engine.connect() as connection:
        return float(connection.execute(select(wait).where(m.c.id == UUID(id))).scalar_one())


def over(rows: Rows) -> None:
    """Every lease has run out."""
    rows.change(locked_until=seconds_from_now(-1), locked_by="worker-1")


class TestTakeSingly:
    def test_works_with_the_largest_numbers_that_settings_take(self, new_store: MakeStore, rows: Rows) -> None:
        largest: dict[str, Any] = {
            "max_attempts": 30_000, "max_age": CENTURY_SECONDS, "concurrency": 10_000, "rate_limit": 1_000_000,
            "send_timeout": WEEK_SECONDS,
        }  # fmt: skip
        store = new_store(
            destinations={"orders": {"url": "a://b", **largest}}, queue_lease=WEEK_SECONDS,
            backoff_base=WEEK_SECONDS, backoff_cap=WEEK_SECONDS, statement_timeout=WEEK_SECONDS,
            inbox_retention=CENTURY_SECONDS,
        )  # fmt: skip
        ids = rows.insert(2) + rows.insert(1, key="k")
        singles = take(store, {"orders": 50_000})
        assert {single.id for single in singles} == set(ids)
        for single in singles:
            settle(store, single.token, Verdict(begun(store, single), Step.RETRY, 1.25 * WEEK_SECONDS, "busy", "later"))
            assert due_in(rows, single.id) == pytest.approx(2.25 * WEEK_SECONDS, abs=60)
        assert retention.forget_marks(store)[0] == 0

    def test_skips_rows_that_another_transaction_has_locked(
        self, store: Store, new_store: MakeStore, rows: Rows, engine: Engine
    ) -> None:
        ids = rows.insert(10)
        with engine.connect() as other:
            locked = text(f"SELECT FROM {store.settings.database_schema}.outbox_ready ORDER BY seq LIMIT 4 FOR UPDATE")
            other.execute(locked)
            first = take(store, {"orders": 10})  # if it waited, it would end as too slow
        assert {single.id for single in first} == set(ids[4:])
        assert {single.id for single in take(new_store(), {"orders": 10})} == set(ids[:4])


class TestALeaseThatRanOut:
    def test_before_its_send_began_says_so_and_spends_nothing(
        self, store: Store, rows: Rows, single: MakeSingle
    ) -> None:
        first, failed = single(), single(attempts=1, last_error_code="busy", last_error="later")
        over(rows)
        [again] = [taken for taken in take(store, {"orders": 2}) if taken.id == first.id]
        row, failed_row = rows.one(first.id), rows.one(failed.id)
        assert (failed_row.last_error_code, failed_row.last_error) == ("busy", "later")
        assert (row.last_error_code, row.attempts, again.attempts) == ("lease_expired", 0, 0)
        assert row.last_error == "claimed by worker-1, and the lease ran out before it was begun"

    def test_is_found_although_it_is_seen_later(
        self, store: Store, rows: Rows, single: MakeSingle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A transaction that would have ended it was open, and was rolled back."""
        monkeypatch.setattr("outbox_tasks.relay.store.claims.HOUSEKEEPING_SECONDS", 0.0)
        keep_house(store)
        single()
        rows.change(locked_until=seconds_from_now(-3))
        assert store.claims.keep_house()
        assert take(store, {"orders": 1})
        rows.change(locked_until=seconds_from_now(-30))
        assert not store.claims.keep_house()
        monkeypatch.setattr("outbox_tasks.relay.store.claims.FROM_FRONT_SECONDS", 0.0)
        assert store.claims.keep_house()  # once in that time all leases are looked at

    @pytest.mark.parametrize("limit", ["LEASES_AT_ONCE", "MESSAGES_AT_ONCE"])
    def test_is_taken_back_however_many_there_are(
        self, store: Store, new_store: MakeStore, rows: Rows, limit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.relay.store.claims.HOUSEKEEPING_SECONDS", 0.0)
        monkeypatch.setattr(f"outbox_tasks.relay.store.claims.{limit}", 2)
        rows.insert(5)
        assert len(take(store, {"orders": 5})) == 5
        rows.change(locked_until=seconds_from_now(-30))
        claims = new_store().claims
        assert [claims.keep_house() for _ in range(4)] == [True, True, True, False]

    @pytest.mark.parametrize("former", [{}, {"attempts": 1, "last_error_code": "busy", "last_error": "late"}])
    def test_in_the_middle_of_a_send_counts_the_attempt_and_its_message_travels_alone_until_one_ends(
        self, store: Store, rows: Rows, single: MakeSingle, former: dict[str, Any]
    ) -> None:
        first, attempt = single(**former), former.get("attempts", 0) + 1
        begun(store, first)
        over(rows)
        rows.insert(3)
        keep_house(store)
        row = rows.one(first.id)
        assert (row.last_error_code, row.attempts, row.begun) == ("unsettled", attempt, False)
        assert f"attempt {attempt} was begun by worker-1 and never settled" in row.last_error
        batches = {len(batch.messages): batch for batch in (take_batch(store), take_batch(store))}
        assert batches.keys() == {1, 3}
        [message] = batches[1].messages
        assert message.id == first.id
        settle(store, batches[1].token, Verdict(message, Step.LATER, 0, "busy", "later"))
        rows.insert(3)
        keep_house(store)
        assert len(take_batch(store).messages) == 4
        assert rows.one(first.id).last_error_code == "busy"

    def test_after_it_may_have_killed_a_worker_and_was_lost_in_the_queue_it_still_travels_alone(
        self, store: Store, rows: Rows, single: MakeSingle
    ) -> None:
        single(attempts=1, last_error_code="unsettled", last_error="why")
        over(rows)
        keep_house(store)
        rows.insert(2)
        assert sorted(len(take_batch(store).messages) for _ in range(2)) == [1, 2]

    def test_hides_no_others_that_were_written_before(self, store: Store, rows: Rows) -> None:
        rows.insert(2)
        [id] = rows.insert(attempts=1, last_error_code="unsettled", last_error="why")
        assert [single.id for single in take(store, {"orders": 1})] == [id]
        assert len(take(store, {"orders": 10})) == 2


class TestBegin:
    def test_a_time_that_python_cannot_represent_stops_no_begin(self, store: Store, rows: Rows) -> None:
        """Also on PostgreSQL before 17, which has no difference of infinite times."""
        ids = rows.insert(2 * len(TIMES))
        for n, when in enumerate(TIMES * 2):
            rows.change([ids[n]], created_at=text(f"'{when}'::timestamptz"))
        messages = [begun(store, single) for single in take(store, {"orders": len(TIMES)})]
        messages += take_batch(store).messages
        assert {message.id for message in messages} == set(ids)
        assert all(isfinite(message.age) for message in messages)

    def test_grants_the_time_of_a_send_and_never_shortens_the_lease(
        self, store: Store, rows: Rows, single: MakeSingle
    ) -> None:
        long_ago = seconds_from_now(-1000)
        short, long = single(created_at=long_ago), single(created_at=long_ago, deliver_at=seconds_from_now(-50))
        rows.change([short.id], locked_until=seconds_from_now(5))
        for taken, least, age in ((short, 35, 1000), (long, 55, 50)):
            assert begun(store, taken).age == pytest.approx(age, abs=30)
            assert least < due_in(rows, taken.id) <= least + 5


class TestSettle:
    def test_a_retry_has_a_lease_of_its_own_for_its_wait_and_for_the_queue(
        self, store: Store, rows: Rows, single: MakeSingle
    ) -> None:
        taken = single()
        message = begun(store, taken)
        retry = Verdict(message, Step.RETRY, 30.0, "bu\0sy", "half \ud800 of a pair")  # others choose both
        assert settle(store, taken.token, retry) == {message.seq}
        row = rows.one(taken.id)
        assert (str(row.lease), row.begun, row.attempts) == (retry.token, False, 1)
        assert (row.last_error_code, row.last_error) == ("bu\\0sy", "half ? of a pair")
        assert 85 < due_in(rows, taken.id) <= 90
        assert begin(store, taken) is None  # the first task, delivered once more
        assert begun(store, taken._replace(token=str(row.lease))).attempts == 2

    def test_counts_once_also_if_the_lease_has_run_out_and_nobody_took_it_back(
        self, store: Store, rows: Rows, lease: Lease
    ) -> None:
        batch = lease(4)
        over(rows)
        verdicts = [Verdict(message, Step.SENT) for message in batch.messages]
        assert settle(store, batch.token, *verdicts) == {message.seq for message in batch.messages}
        assert settle(store, batch.token, *verdicts) == set()
        assert len(rows.archived()) == 4

    @pytest.mark.parametrize(("tried_before", "settled_code"), [(False, "unsettled"), (True, None)])
    def test_what_was_sent_in_vain_says_so_on_its_row_unless_that_has_an_error(
        self, store: Store, rows: Rows, lease: Lease, tried_before: bool, settled_code: str | None
    ) -> None:
        """After a try without an answer, this process may have settled it itself."""
        batch = lease(3)
        settled, failed, lost = batch.messages
        verdicts = [Verdict(settled, Step.SENT), Verdict(failed, Step.LATER, 9, "busy", "later")]
        verdicts += [Verdict(lost, Step.BEHIND, sent=False)]
        assert settle(store, batch.token, *verdicts) == {message.seq for message in batch.messages}
        assert (rows.one(failed.id).attempts, rows.one(lost.id).attempts) == (1, 0)
        store.leases.sent_in_vain(batch.messages, tried_before=tried_before)
        assert [row.last_error_code for row in rows.archived()] == [settled_code]
        codes = [(rows.one(m.id).last_error_code, rows.one(m.id).history[-1]["what"]) for m in (failed, lost)]
        assert codes == [("busy", "sent in vain"), ("unsettled", "sent in vain")]


SPOILED: dict[str, Callable[[Rows, str], str | None]] = {
    "wrong lease": lambda rows, token: str(uuid4()),
    "claimed by another": lambda rows, token: rows.change(lease=OTHER),
    "of another destination": lambda rows, token: rows.change(destination="audit"),
    "dead": lambda rows, token: rows.change(status="dead", lease=None),
    "expired": lambda rows, token: rows.change(locked_until=seconds_from_now(-0.01)),
    "begun": lambda rows, token: rows.change(begun=True),
}


class TestFence:
    @pytest.mark.parametrize("act", ["begin", "sent", "dead"])  # each has a statement of its own
    def test_what_is_not_ours_any_more_is_left_as_it_is(
        self, store: Store, rows: Rows, single: MakeSingle, act: str
    ) -> None:
        for case, spoil in SPOILED.items():
            rows.clear()
            taken = single()
            message = None if act == "begin" else begun(store, taken)
            if message and case in ("expired", "begun"):
                continue
            token = spoil(rows, taken.token) or taken.token
            before = rows.hot()
            if message:
                assert settle(store, token, Verdict(message, Step(act), 1, "code", "error")) == set(), case
            else:
                assert store.leases.begin(token, "orders") is None, case
            assert (rows.hot(), rows.archived()) == (before, []), case


class TestGiveBack:
    def test_makes_a_message_due_again_without_a_note_unless_its_send_has_begun(
        self, store: Store, rows: Rows, single: MakeSingle
    ) -> None:
        taken, sending = single(), single()
        begun(store, sending)
        store.leases.give_back([taken.token, sending.token, str(uuid4())])
        assert begin(store, taken) is None
        [again] = take(store, {"orders": 10})
        row = rows.one(taken.id)
        assert (again.id, again.attempts) == (taken.id, 0)
        assert (row.last_error_code, row.history) == (None, None)
        assert rows.one(sending.id).begun


class TestRecall:
    def test_ends_the_leases_of_all_singles_whose_send_has_not_begun(
        self, store: Store, rows: Rows, single: MakeSingle, lease: Lease
    ) -> None:
        begun(store, single())
        lease(2)
        taken = single()
        [later] = rows.insert(1, locked_until=seconds_from_now(60))
        assert store.claims.take_slot("orders", 2)
        store.claims.reserve_slots({"orders": (2, 1)})
        assert store.claims.recall("elsewhere:1") == 0
        assert store.claims.recall() == 1
        assert [slot.number for slot in store.claims.reserve_slots({"orders": (2, 2)})] == [2]  # 1 is at work
        assert [str(row.id) for row in rows.hot() if due_in(rows, str(row.id)) <= 0] == [taken.id]
        assert begin(store, taken) is None
        assert [again.id for again in take(store, {"orders": 10})] == [taken.id]
        assert rows.one(taken.id).last_error_code == "lease_expired"
        assert rows.one(later).lease is None

    def test_a_retry_still_waits_for_its_time(self, store: Store, rows: Rows, single: MakeSingle) -> None:
        taken = single()
        settle(store, taken.token, Verdict(begun(store, taken), Step.RETRY, 30.0, "busy", "later"))
        assert store.claims.recall() == 1
        assert 20 < due_in(rows, taken.id) <= 30

    def test_ends_what_a_dead_process_has_begun(
        self, store: Store, rows: Rows, single: MakeSingle, lease: Lease
    ) -> None:
        begun(store, single())
        lease(2)
        [slot] = store.claims.reserve_slots({"orders": (1, 1)})
        assert store.claims.begin_drain(slot)
        rows.change(locked_until=seconds_from_now(600))  # as of a send that may take long
        assert store.claims.recall("elsewhere:1") == 0
        assert store.claims.reserve_slots({"orders": (1, 1)}) == []
        assert store.claims.recall(holder()) == 3
        assert store.claims.reserve_slots({"orders": (1, 1)})
        keep_house(store)
        assert [(row.last_error_code, row.attempts) for row in rows.hot()] == [("unsettled", 1)] * 3
        assert [len(take_batch(store).messages) for _ in range(3)] == [1, 1, 1]


def test_after_a_crash_what_is_due_or_claimed_says_so_unless_it_has_an_error(
    store: Store, rows: Rows, single: MakeSingle
) -> None:
    store.claims.note_lost_commits()
    begun(store, single())
    single()
    rows.insert(last_error_code="busy", last_error="later")
    rows.insert()
    rows.insert(locked_until=seconds_from_now(60))
    with rows.engine.begin() as connection:
        schema = store.settings.database_schema
        crash = "facts || jsonb_build_object('counts_since', 'before') WHERE name = 'server'"
        connection.execute(text(f"UPDATE {schema}.outbox_heartbeats SET facts = {crash}"))
    assert store.claims.note_lost_commits() == 2
    assert [row.last_error_code for row in rows.hot()] == [None, "database_crashed", "busy", "database_crashed", None]
    assert store.claims.note_lost_commits() is None


class TestBuryStrangers:
    @pytest.mark.parametrize("key", [None, "k"])
    def test_gets_through_any_number_of_destinations_and_rows(
        self, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        """Each message may be for a destination of its own. Of others it is not time yet: a new version of the
        application may write for a destination before the relay is deployed that has it."""
        monkeypatch.setattr("outbox_tasks.relay.store.claims.BURIED_AT_ONCE", 10)
        monkeypatch.setattr("outbox_tasks.relay.store.claims.DESTINATIONS_AT_ONCE", 15)
        rows.insert(2)
        rows.insert(20, destination=text("'new-' || generate_series"), key=key)
        for due in (60, 60 - UNKNOWN_GRACE_SECONDS):
            rows.insert(10, destination="new", locked_until=seconds_from_now(due), key=key)
        rows.insert(65, destination=text("'unknown-' || generate_series"), locked_until=LONG_AGO, key=key)
        rows.insert(30, destination="flood", locked_until=LONG_AGO, key=key)
        lots = [len(store.claims.bury()) for _ in range(25)]
        assert (max(lots), sum(lots)) == (10, 95)
        assert Counter(row.status for row in rows.hot()) == {"pending": 42, "dead": 95}


class TestRaces:
    """Real locks: one statement waits for the row while another changes it."""

    @pytest.mark.parametrize("act", ["begin", "sent", "later"])
    def test_who_waited_for_a_new_claim_changes_nothing(
        self, store: Store, new_store: MakeStore, rows: Rows, engine: Engine, single: MakeSingle, act: str
    ) -> None:
        taken = single()
        message = None if act == "begin" else begun(store, taken)
        late = new_store()

        def wait_and_act() -> object:
            return settle(late, taken.token, Verdict(message, Step(act), 1)) if message else begin(late, taken)

        leases = f"{store.settings.database_schema}.outbox_leases"
        with engine.connect() as claimer, ThreadPoolExecutor(1) as pool:
            # Somebody else takes it, and has not yet committed.
            claimer.execute(text(f"UPDATE {leases} SET token = '{OTHER}', begun_at = NULL"))
            stale = pool.submit(wait_and_act)
            eventually(lambda: waits_for_a_lock(rows))
            assert not stale.done()
            claimer.commit()
            assert not stale.result(10)
        row = rows.one(taken.id)
        assert (row.lease, row.begun, row.status) == (OTHER, False, "pending")
        assert due_in(rows, taken.id) > 0
        assert rows.archived() == []

    def test_a_begin_that_waited_until_its_lease_ran_out_does_not_begin(
        self, new_store: MakeStore, rows: Rows, engine: Engine, single: MakeSingle
    ) -> None:
        """Judged by the clock after the wait, not by when the statement started."""
        taken = single()
        rows.change(locked_until=seconds_from_now(0.3))
        store = new_store()
        with engine.connect() as other, ThreadPoolExecutor(1) as pool:
            other.execute(text(f"UPDATE {store.settings.database_schema}.outbox_leases SET holder = 'touched'"))
            waiting = pool.submit(begin, store, taken)
            eventually(lambda: due_in(rows, taken.id) < 0)
            other.commit()
            assert waiting.result(10) is None


def waits_for_a_lock(rows: Rows) -> bool:
    with rows.engine.connect() as connection:
        return bool(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s",
                (f"%{rows.tables.messages.schema}%",),
            ).scalar()
        )
