"""The store against PostgreSQL: who gets a message, who may say what became of it, and what is left on the row."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, func, select, text

from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.operating import retention
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import GRACE, Claimed
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.settings.destination import CENTURY, WEEK
from tests.claims import take
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import Lease, after, bundle_of

Begun = tuple[str, tuple[Ticket, ...]]

LONG_AGO = seconds_from_now(-2 * GRACE)

TWO = {name: {"url": "a://b", "max_attempts": 3} for name in ("orders", "audit")}


TIMES = ("infinity", "-infinity", "294276-12-31", "4713-01-01 BC")


def token() -> str:
    return str(uuid4())


def due_in(rows: Rows, id: str) -> float:
    """Seconds until the row is due, by the database's clock."""
    m = rows.tables.messages
    wait = func.extract("epoch", m.c.locked_until - func.clock_timestamp())
    with rows.engine.connect() as connection:
        return float(connection.execute(select(wait).where(m.c.id == UUID(id))).scalar_one())


class TestClaim:
    def test_leases_a_due_message(self, store: Store, rows: Rows) -> None:
        [id] = rows.insert(event_type="order.paid")
        lease = token()
        [claimed] = take(store, {"orders": 10}, lease)
        row = rows.one(id)
        assert claimed._replace(age=0.0) == Claimed(
            row.seq, id, "orders", "order.paid", 0, "pending", False, size=len(row.payload)
        )
        assert (str(row.lease), row.locked_by, row.begun, row.attempts) == (lease, holder(), False, 0)
        assert (row.last_error_code, row.last_error) == (None, None)
        assert 55 < due_in(rows, id) <= 60

    def test_takes_rows_in_the_order_of_insertion(self, store: Store, rows: Rows) -> None:
        ids = rows.insert(50) + rows.insert(1, locked_until=seconds_from_now(-100))
        assert [c.id for share in (1, 100) for c in take(store, {"orders": share}, token())] == ids

    def test_gives_each_destination_its_share(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations=TWO)
        rows.insert(20, destination="orders", locked_until=seconds_from_now(-100))
        rows.insert(5, destination="audit")
        for shares, expected in (
            ({}, {}), ({"audit": 1}, {"audit": 1}), ({"orders": 7, "audit": 7}, {"orders": 7, "audit": 4}),
        ):  # fmt: skip
            assert Counter(c.destination for c in take(store, shares, token())) == expected

    def test_works_with_the_largest_numbers_that_settings_take(self, new_store: MakeStore, rows: Rows) -> None:
        largest: dict[str, Any] = {
            "max_attempts": 30_000, "max_age": CENTURY, "concurrency": 10_000, "rate_limit": 1_000_000,
            "send_timeout": WEEK,
        }  # fmt: skip
        store = new_store(
            destinations={"orders": {"url": "a://b", **largest}}, queue_lease=WEEK,
            backoff_base=WEEK, backoff_cap=WEEK, statement_timeout=WEEK, inbox_retention=CENTURY,
        )  # fmt: skip
        ids = rows.insert(2) + rows.insert(1, key="k")
        lease = token()
        bundle = bundle_of(take(store, {"orders": 50_000}, lease), lease)
        begun = store.begin(bundle)
        assert set(begun) == set(ids)
        store.settle(
            lease, "orders", [Verdict(ticket, Step.RETRY, 1.25 * WEEK, "busy", "later") for ticket in after(begun)]
        )
        assert due_in(rows, ids[0]) == pytest.approx(2.25 * WEEK, abs=60)
        assert retention.forget(store, 10) == 0

    @pytest.mark.parametrize(
        "columns",
        [
            {"locked_until": seconds_from_now(5)},
            {"locked_until": seconds_from_now(5), "lease": UUID(int=1)},
            {"status": "dead"},
        ],
        ids=["scheduled", "leased", "dead"],
    )
    def test_leaves_messages_that_are_not_due(self, store: Store, rows: Rows, columns: dict[str, Any]) -> None:
        [id] = rows.insert(**columns)
        before = rows.one(id)
        assert take(store, {"orders": 10}, token()) == []
        assert rows.one(id) == before

    def test_skips_rows_that_another_transaction_has_locked(
        self, store: Store, new_store: MakeStore, rows: Rows, engine: Engine
    ) -> None:
        ids = rows.insert(10)
        with engine.connect() as other:
            locked = text(f"SELECT FROM {store.settings.database_schema}.outbox_ready ORDER BY seq LIMIT 4 FOR UPDATE")
            other.execute(locked)
            first = take(store, {"orders": 10}, token())  # if it waited, it would end as too slow
        assert [c.id for c in first] == ids[4:]
        assert [c.id for c in take(new_store(), {"orders": 10}, token())] == ids[:4]

    def test_a_lease_that_ran_out_before_begin_is_recorded(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease()
        rows.change(locked_until=seconds_from_now(-1), locked_by="worker-1")
        [claimed] = take(store, {"orders": 1}, token())
        row = rows.one(bundle.tickets[0].id)
        assert (row.last_error_code, row.attempts, claimed.alone) == ("lease_expired", 0, False)
        assert row.last_error == "claimed by worker-1, and the lease ran out before it was begun"

    def test_a_send_that_was_never_settled_is_recorded_and_travels_alone(
        self, store: Store, rows: Rows, lease: Lease
    ) -> None:
        bundle = lease()
        id = bundle.tickets[0].id
        store.begin(bundle)
        rows.change(locked_until=seconds_from_now(-1), locked_by="worker-1")
        [claimed] = take(store, {"orders": 1}, token())
        row = rows.one(id)
        assert (row.last_error_code, row.attempts, row.begun, claimed.alone) == ("unsettled", 1, False, True)
        assert "attempt 1 was begun by worker-1 and never settled" in row.last_error
        # It stays so until an attempt ends.
        rows.change(locked_until=seconds_from_now(-1))
        [again] = take(store, {"orders": 1}, token())
        assert again.alone

    def test_after_an_attempt_that_ended_it_travels_with_others_again(
        self, store: Store, rows: Rows, lease: Lease
    ) -> None:
        rows.insert(begun=True, attempts=1, lease=UUID(int=1))
        bundle = lease(0)
        [ticket] = after(store.begin(bundle))
        store.settle(bundle.lease, "orders", [Verdict(ticket, Step.RELEASE, 0, "busy", "later")])
        [claimed] = take(store, {"orders": 1}, token())
        assert (claimed.alone, rows.one(ticket.id).last_error_code) == (False, "busy")

    def test_the_error_of_the_last_attempt_stays_when_its_retry_is_lost(self, store: Store, rows: Rows) -> None:
        [id] = rows.insert(attempts=2, lease=UUID(int=1), last_error_code="busy", last_error="later")
        take(store, {"orders": 1}, token())
        row = rows.one(id)
        assert (row.last_error_code, row.last_error) == ("busy", "later")

    @pytest.mark.parametrize(
        ("columns", "code", "error"),
        [
            ({}, "attempts_exhausted", None),
            ({"last_error_code": "busy", "last_error": "later"}, "busy", "later"),
            (
                {"begun": True, "lease": UUID(int=1), "locked_by": "worker-1"},
                "unsettled",
                "attempt 3 was begun by worker-1",
            ),
        ],
        ids=["no error", "an error", "unsettled"],
    )
    def test_a_message_without_attempts_left_becomes_a_dead_letter(
        self, new_store: MakeStore, rows: Rows, columns: dict[str, Any], code: str, error: str | None
    ) -> None:
        store = new_store(destinations=TWO)
        [id] = rows.insert(attempts=3, **columns)
        [claimed] = take(store, {"orders": 1}, token())
        row = rows.one(id)
        assert (claimed.status, row.status, row.lease, row.attempts) == ("dead", "dead", None, 3)
        assert row.last_error_code == code
        assert (row.last_error or "").startswith(error or "")
        assert row.dead_at is not None
        assert take(store, {"orders": 1}, token()) == []

    def test_two_stores_at_once_never_share_a_row(self, new_store: MakeStore, rows: Rows) -> None:
        ids = rows.insert(600)
        together = threading.Barrier(2)

        def run(store: Store) -> list[str]:
            together.wait(10)
            taken: list[str] = []
            while claimed := take(store, {"orders": 20}, token()):
                taken += [c.id for c in claimed]
            return taken

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(run, [new_store(), new_store()])
        assert not set(first) & set(second)
        # What one skipped because the other had it locked, the other has taken.
        assert sorted(first + second) == sorted(ids)
        assert len(rows.hot()) == 600


class TestBegin:
    def test_counts_the_attempt_and_returns_the_message(self, store: Store, rows: Rows, lease: Lease) -> None:
        fields = {
            "event_type": "order.paid", "key": "order:42", "payload": b"\x00\xff", "content_type": "text/plain",
            "headers": {"tenant": "t1"}, "aggregate_type": "order", "aggregate_id": "42",
        }  # fmt: skip
        bundle = lease(**fields)
        id = bundle.tickets[0].id
        message = store.begin(bundle)[id]
        row = rows.one(id)
        assert {name: getattr(message, name) for name in fields} == fields
        assert (message.id, message.destination, message.attempts) == (id, "orders", 1)
        assert message.created_at == row.created_at
        assert isinstance(message.payload, bytes)
        assert (row.attempts, row.begun, str(row.lease), row.locked_by) == (1, True, bundle.lease, holder())

    def test_a_time_that_python_cannot_represent_stops_no_begin(self, store: Store, rows: Rows) -> None:
        """Also on PostgreSQL before 17, which has no difference of infinite times."""
        ids = rows.insert(9)
        for n, when in enumerate(TIMES):
            rows.change(ids[n : n + 1], created_at=text(f"'{when}'::timestamptz"))
        lease = token()
        assert len(take(store, {"orders": 9}, lease)) == 9
        begun = store.begin(Bundle("orders", lease, tuple(Ticket(id, 0, "a") for id in ids)))
        assert begun.keys() == set(ids)
        assert all(isfinite(message.age) for message in begun.values())

    def test_grants_the_run_lease_at_least_and_never_shortens_the_lease(
        self, store: Store, rows: Rows, lease: Lease
    ) -> None:
        short, long = lease(), lease()
        rows.change([short.tickets[0].id], locked_until=seconds_from_now(5))
        for bundle, least in ((short, 35), (long, 55)):
            store.begin(bundle)
            assert least < due_in(rows, bundle.tickets[0].id) <= least + 5

    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda rows, bundle: replace(bundle, lease=token()), id="wrong lease"),
            pytest.param(lambda rows, bundle: replace(bundle, destination="mails"), id="wrong destination"),
            pytest.param(lambda rows, bundle: rows.change(locked_until=seconds_from_now(-0.01)), id="expired"),
            pytest.param(lambda rows, bundle: rows.change(lease=UUID(int=7)), id="claimed by another"),
            pytest.param(lambda rows, bundle: rows.change(status="dead", lease=None), id="dead"),
        ],
    )
    def test_a_message_that_is_not_ours_any_more_is_not_begun(
        self, store: Store, rows: Rows, lease: Lease, spoil: Any
    ) -> None:
        bundle = lease()
        bundle = spoil(rows, bundle) or bundle
        before = rows.hot()
        assert store.begin(bundle) == {}
        assert rows.hot() == before

    def test_two_begins_at_once_never_share_a_message(self, new_store: MakeStore, rows: Rows, lease: Lease) -> None:
        bundle = lease(200)
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda store: set(store.begin(bundle)), [new_store(), new_store()])
        assert not first & second
        assert len(first | second) == 200

    def test_begins_only_the_messages_that_are_still_ours_and_counts_the_attempt_of_each(
        self, store: Store, rows: Rows, lease: Lease
    ) -> None:
        kept, lost, tried = [*rows.insert(2), *rows.insert(attempts=2)]
        bundle = lease(0)
        rows.change([lost], lease=UUID(int=7))
        assert {id: message.attempts for id, message in store.begin(bundle).items()} == {kept: 1, tried: 3}

    def test_a_retry_begins_only_with_its_own_lease(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease()
        [ticket] = after(store.begin(bundle))
        verdict = Verdict(ticket, Step.RETRY, 0, "busy", "later")
        store.settle(bundle.lease, "orders", [verdict])
        assert store.begin(bundle) == {}  # the first task, delivered once more
        assert verdict.lease is not None
        assert store.begin(replace(bundle, lease=verdict.lease))[ticket.id].attempts == 2


class TestSettle:
    @pytest.fixture
    def begun(self, store: Store, lease: Lease) -> Begun:
        bundle = lease(4)
        return bundle.lease, after(store.begin(bundle))

    def test_a_sent_message_moves_to_the_archive_with_all_columns(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease(
            key="order:42", payload=b"\x00\xff", content_type="text/plain", headers={"a": "b"}, attempts=1,
            aggregate_type="order", aggregate_id="42", last_error_code="busy", last_error="later",
        )  # fmt: skip
        [ticket] = after(store.begin(bundle))
        before = rows.one(ticket.id)
        assert store.settle(bundle.lease, "orders", [Verdict(ticket, Step.SENT)]) == {ticket.id}
        assert rows.hot() == []
        [kept] = rows.archived()
        names = [c.name for c in rows.tables.archive.c if c.name not in ("state", "finished_at")]
        assert {n: getattr(kept, n) for n in names} == {n: getattr(before, n) for n in names}
        assert kept.state == "sent"
        assert before.created_at < kept.finished_at <= datetime.now(UTC)

    def test_each_message_of_a_bundle_gets_what_its_verdict_says(self, store: Store, rows: Rows, begun: Begun) -> None:
        lease, (sent, again, later, refused) = begun
        retry = Verdict(again, Step.RETRY, 30.0, "busy", "later")
        verdicts = [
            Verdict(sent, Step.SENT),
            retry,
            Verdict(later, Step.RELEASE, 300.0, "throttled", "not so fast"),
            Verdict(refused, Step.DEAD, 0, "wrong_type", "no stream"),
        ]
        assert store.settle(lease, "orders", verdicts) == {sent.id, again.id, later.id, refused.id}
        assert [rows.state(t.id) for t in begun[1]] == ["sent", "retrying", "retrying", "dead"]
        found = {
            ticket.id: (str(row.lease), row.begun, row.attempts, row.status, row.last_error_code, row.last_error)
            for ticket in begun[1][1:]
            for row in [rows.one(ticket.id)]
        }
        assert found == {
            again.id: (retry.lease, False, 1, "pending", "busy", "later"),
            later.id: ("None", False, 1, "pending", "throttled", "not so fast"),
            refused.id: ("None", False, 1, "dead", "wrong_type", "no stream"),
        }
        assert 85 < due_in(rows, again.id) <= 90, "a retry keeps its lease for the wait and for the queue"
        assert 295 < due_in(rows, later.id) <= 300
        assert [rows.one(ticket.id).dead_at is None for ticket in begun[1][1:]] == [True, True, False]
        assert store.settle(lease, "orders", []) == set()

    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda rows, lease, ticket: (token(), ticket), id="wrong lease"),
            pytest.param(lambda rows, lease, ticket: rows.change(lease=UUID(int=7)), id="claimed by another"),
            pytest.param(lambda rows, lease, ticket: rows.change(status="dead", lease=None), id="dead"),
            pytest.param(lambda rows, lease, ticket: (lease, ticket._replace(id=token())), id="gone"),
        ],
    )
    def test_a_message_that_is_not_ours_any_more_is_left_as_it_is(
        self, store: Store, rows: Rows, begun: Begun, spoil: Any
    ) -> None:
        lease, [ticket, *_] = begun
        lease, ticket = spoil(rows, lease, ticket) or (lease, ticket)
        before = rows.hot()
        for step in (Step.SENT, Step.RETRY, Step.RELEASE, Step.DEAD):
            assert store.settle(lease, "orders", [Verdict(ticket, step, 1, "code", "error")]) == set(), step
            assert (rows.hot(), rows.archived()) == (before, []), step

    def test_a_send_counts_once_also_if_its_lease_has_run_out_and_nobody_claimed_the_messages(
        self, store: Store, rows: Rows, begun: Begun
    ) -> None:
        lease, tickets = begun
        rows.change(locked_until=seconds_from_now(-10))
        verdicts = [Verdict(ticket, Step.SENT) for ticket in tickets]
        assert store.settle(lease, "orders", verdicts) == {ticket.id for ticket in tickets}
        assert store.settle(lease, "orders", verdicts) == set()
        assert len(rows.archived()) == 4

    def test_any_code_and_error_text_can_be_stored(self, store: Store, rows: Rows, lease: Lease) -> None:
        """Third-party publishers choose both."""
        stored = {
            "NUL \0 in it": "NUL \\0 in it",
            "half \ud800 of a pair": "half ? of a pair",
            "naïve 😀 'quoted' %s {x} \\u0000": "naïve 😀 'quoted' %s {x} \\u0000",
            "": "",
            None: None,
        }
        bundle = lease(len(stored))
        tickets = after(store.begin(bundle))
        verdicts = [Verdict(ticket, Step.RELEASE, 1, said, said) for ticket, said in zip(tickets, stored, strict=True)]
        store.settle(bundle.lease, "orders", verdicts)
        found = [rows.one(ticket.id) for ticket in tickets]
        assert [(row.last_error_code, row.last_error) for row in found] == [(text, text) for text in stored.values()]


class TestRelease:
    def test_gives_the_lease_back(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease(2)
        assert store.release(bundle.lease, bundle.tickets) == {ticket.id for ticket in bundle.tickets}
        assert [(row.lease, row.attempts, row.begun) for row in rows.hot()] == [(None, 0, False)] * 2
        again = take(store, {"orders": 10}, token())
        assert [c.id for c in again] == [ticket.id for ticket in bundle.tickets]
        assert {row.last_error_code for row in rows.hot()} == {None}

    def test_the_next_attempt_can_be_delayed(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease()
        store.release(bundle.lease, bundle.tickets, 100)
        assert 95 < due_in(rows, bundle.tickets[0].id) <= 100

    def test_leaves_messages_that_are_not_ours_or_have_begun(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease()
        assert store.release(token(), bundle.tickets) == set()
        assert str(rows.hot()[0].lease) == bundle.lease
        tickets = after(store.begin(bundle))
        before = rows.hot()
        assert store.release(bundle.lease, tickets) == set()
        assert store.release(bundle.lease, bundle.tickets) == set()
        assert rows.hot() == before


class TestRecall:
    def test_ends_all_leases_that_are_not_begun(self, store: Store, rows: Rows, lease: Lease) -> None:
        begun, bundle = lease(1), lease(2)
        store.begin(begun)
        later = rows.insert(1, locked_until=seconds_from_now(60))
        assert store.recall() == 2
        assert {str(row.id) for row in rows.hot() if due_in(rows, str(row.id)) <= 0} == {t.id for t in bundle.tickets}
        assert store.begin(bundle) == {}
        again = take(store, {"orders": 10}, str(uuid4()))
        assert {(row.id, row.cause) for row in again} == {(t.id, "lease_expired") for t in bundle.tickets}
        assert store.recall("elsewhere:1") == 0
        assert rows.one(later[0]).lease is None

    def test_a_retry_still_waits_for_its_time(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle = lease()
        [ticket] = after(store.begin(bundle))
        store.settle(bundle.lease, "orders", [Verdict(ticket, Step.RETRY, 30.0, "busy", "later")])
        assert store.recall() == 1
        assert 20 < due_in(rows, ticket.id) <= 30

    def test_ends_what_a_dead_process_has_begun(self, store: Store, rows: Rows, lease: Lease) -> None:
        bundle, other = lease(2), lease(1)
        store.begin(bundle)
        store.begin(other)
        assert store.recall("elsewhere:1") == 0
        assert store.recall(holder()) == 3
        again = take(store, {"orders": 10}, str(uuid4()))
        sent = {t.id for t in (*bundle.tickets, *other.tickets)}
        assert {(row.id, row.cause, row.alone) for row in again} == {(id, "unsettled", True) for id in sent}

    def test_leaves_rows_that_somebody_is_changing(
        self, store: Store, rows: Rows, lease: Lease, engine: Engine
    ) -> None:
        lease()
        with engine.begin() as connection:
            connection.execute(text(f"SELECT FROM {store.settings.database_schema}.outbox_leases FOR UPDATE"))
            assert store.recall() == 0


class TestBuryUnroutable:
    def test_makes_dead_letters_of_rows_for_destinations_that_are_not_configured(
        self, store: Store, rows: Rows
    ) -> None:
        [known] = rows.insert(destination="orders")
        [rubbish] = rows.insert(destination="no 'such' %s\n", payload=b"\xff", locked_until=LONG_AGO)
        before = rows.one(known)
        assert [row.id for row in store.bury_unroutable()] == [rubbish]
        row = rows.one(rubbish)
        assert (row.status, row.lease, row.attempts, row.last_error_code) == ("dead", None, 0, "unknown_destination")
        assert "no destination " in row.last_error
        assert row.dead_at is not None
        assert rows.one(known) == before
        assert store.bury_unroutable() == []

    def test_leaves_messages_that_have_not_been_due_for_long(self, store: Store, rows: Rows) -> None:
        """A new version of the application may write for a destination before the relay is deployed that has it."""
        for key in (None, "order:42"):
            for due in (60, -1, 60 - GRACE):
                rows.insert(destination="new", locked_until=seconds_from_now(due), key=key)
        assert store.bury_unroutable() == []

    def test_gets_through_any_number_of_destinations_and_rows(self, store: Store, rows: Rows) -> None:
        rows.insert(3)
        rows.insert(250, destination="flood", locked_until=LONG_AGO)
        rows.insert(130, destination=text("'unknown-' || generate_series"), locked_until=LONG_AGO)
        runs = 0
        while store.bury_unroutable():
            runs += 1
        assert 1 <= runs <= 5
        assert Counter(row.status for row in rows.hot()) == {"pending": 3, "dead": 380}

    @pytest.mark.parametrize("key", [None, "k"])
    def test_takes_a_lot_at_a_time_and_goes_on_at_once(
        self, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        """Each message may be for a destination of its own; of others it is not time yet."""
        monkeypatch.setattr("outbox_tasks.relay.store.claims.BURIED_AT_ONCE", 10)
        monkeypatch.setattr("outbox_tasks.relay.store.claims.DESTINATIONS_AT_ONCE", 15)
        rows.insert(2)
        rows.insert(40, destination=text("'new-' || generate_series"), key=key)
        rows.insert(95, destination=text("'unknown-' || generate_series"), locked_until=LONG_AGO, key=key)
        pause, lots = 1000.0, []
        for _ in range(20):
            lots.append(len(store.bury_unroutable(pause)))
            if lots[-1] < 10:
                store._buried_at = -1000.0  # as if the pause were over
        assert max(lots) <= 10
        assert sum(lots) == 95

    def test_skips_rows_that_another_has_locked(self, store: Store, rows: Rows, engine: Engine) -> None:
        rows.insert(2, destination="gone", locked_until=LONG_AGO)
        with engine.connect() as other:
            other.execute(text(f"SELECT FROM {store.settings.database_schema}.outbox_ready LIMIT 1 FOR UPDATE"))
            assert len(store.bury_unroutable()) == 1


class TestRaces:
    """Real locks: one statement waits for the row while another changes it."""

    @pytest.mark.parametrize(
        ("begun", "act"),
        [
            pytest.param(
                True, lambda store, lease, t: store.settle(lease, "orders", [Verdict(t, Step.SENT)]), id="sent"
            ),
            pytest.param(
                True, lambda store, lease, t: store.settle(lease, "orders", [Verdict(t, Step.RETRY, 1)]), id="retry"
            ),
            pytest.param(False, lambda store, lease, t: store.begin(Bundle("orders", lease, (t,))), id="begin"),
            pytest.param(False, lambda store, lease, t: store.release(lease, [t]), id="release"),
        ],
    )
    def test_a_stale_publisher_that_waited_for_a_new_claim_changes_nothing(
        self, store: Store, new_store: MakeStore, rows: Rows, engine: Engine, lease: Lease, begun: bool, act: Any
    ) -> None:
        bundle = lease()
        [ticket] = after(store.begin(bundle)) if begun else bundle.tickets
        leases = f"{store.settings.database_schema}.outbox_leases"
        with engine.connect() as claimer, ThreadPoolExecutor(1) as pool:
            # Somebody else takes the bundle, and has not yet committed.
            claimer.execute(text(f"UPDATE {leases} SET token = '{UUID(int=7)}', begun_at = NULL"))
            stale = pool.submit(act, new_store(), bundle.lease, ticket)
            eventually(lambda: waits_for_a_lock(rows))
            assert not stale.done()
            claimer.commit()
            assert not stale.result(10)
        row = rows.one(ticket.id)
        assert (row.lease, row.begun, row.status) == (UUID(int=7), False, "pending")
        assert rows.archived() == []

    def test_a_begin_that_waited_until_its_lease_ran_out_does_not_begin(
        self, new_store: MakeStore, rows: Rows, engine: Engine, lease: Lease
    ) -> None:
        """Judged by the clock after the wait, not by when the statement started."""
        bundle = lease()
        rows.change(locked_until=seconds_from_now(0.3))
        store = new_store()
        with engine.connect() as other, ThreadPoolExecutor(1) as pool:
            other.execute(text(f"UPDATE {store.settings.database_schema}.outbox_leases SET holder = 'touched'"))
            begin = pool.submit(store.begin, bundle)
            eventually(lambda: due_in(rows, bundle.tickets[0].id) < 0)
            other.commit()
            assert begin.result(10) == {}

    def test_a_claim_does_not_wait_for_a_publisher_that_settles(
        self, store: Store, rows: Rows, engine: Engine, lease: Lease
    ) -> None:
        bundle = lease()
        store.begin(bundle)
        rows.change(locked_until=seconds_from_now(-1))
        with engine.connect() as settling:
            settling.execute(text(f"DELETE FROM {store.settings.database_schema}.outbox_leases"))
            assert take(store, {"orders": 1}, token()) == []
            settling.commit()
        assert take(store, {"orders": 1}, token()) == []

    def test_every_message_is_settled_once_though_leases_run_out_early(self, new_store: MakeStore, rows: Rows) -> None:
        """Leases so short that they run out in the hands of their holders."""
        ids = rows.insert(300)
        store = new_store(destinations={"orders": {"url": "a://b", "max_attempts": 1000}})
        settled: list[str] = []

        def run(_: int) -> None:
            while not len(settled) >= 300:
                lease = token()
                claimed = take(store, {"orders": 20}, lease)
                if not claimed:
                    time.sleep(0.002)
                    continue
                bundle = bundle_of(claimed, lease)
                if hash(lease) % 3 == 0:
                    rows.change([t.id for t in bundle.tickets], locked_until=seconds_from_now(-1))
                tickets = after(store.begin(bundle))
                if hash(lease) % 3 == 1:
                    rows.change([t.id for t in tickets], locked_until=seconds_from_now(-1))
                settled.extend(store.settle(lease, "orders", [Verdict(ticket, Step.SENT) for ticket in tickets]))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))
        assert sorted(settled) == sorted(ids)
        assert sorted(str(row.id) for row in rows.archived()) == sorted(ids)


def waits_for_a_lock(rows: Rows) -> bool:
    with rows.engine.connect() as connection:
        return bool(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s",
                (f"%{rows.tables.messages.schema}%",),
            ).scalar()
        )
