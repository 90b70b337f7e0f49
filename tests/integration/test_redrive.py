"""What people do to messages: each message once, nothing lost, and all of it kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from outbox_tasks.errors import EditRefused, NotDead, PayloadTooLarge, UnknownMessage
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import Lease, after, bundle_of

DEAD = Filter(states=("dead",))


def bury(rows: Rows, count: int = 1, **columns: Any) -> list[str]:
    """Dead letters, of a minute ago."""
    dead = {"status": "dead", "dead_at": seconds_from_now(-60), "attempts": 3, "last_error_code": "http_400"}
    return rows.insert(count, **{**dead, "last_error": "refused: no such order 42", **columns})


def acts(rows: Rows) -> list[Any]:
    """The audit."""
    return rows._read(text(f"SELECT * FROM {rows.tables.audit} ORDER BY seq"))


@pytest.fixture
def operator(store: Store) -> Operator:
    return Operator(store, "ann", "the shop is back")


class TestRedrive:
    def test_makes_a_dead_letter_due_with_all_its_attempts(self, store: Store, rows: Rows, operator: Operator) -> None:
        [id] = bury(rows, outages=2, begun=True, deliver_at=seconds_from_now(-9000))
        done = operator.act("redrive", [UUID(id)], target=id)
        assert (done.count, done.missed, done.stopped) == (1, [], False)
        row = rows.one(id)
        assert (row.status, row.attempts, row.outages, row.begun, row.lease) == ("pending", 0, 0, False, None)
        assert (row.dead_at, row.last_error_code) == (None, "http_400")
        [note] = row.history
        assert (note["what"], note["by"], note["why"], note["attempts"]) == ("redriven", "ann", "the shop is back", 3)
        [act] = acts(rows)
        assert (act.who, act.why, act.action, act.target, act.count) == ("ann", "the shop is back", "redrive", id, 1)
        assert note["entry"] == act.seq
        [claimed] = take(store, {"orders": 1}, str(uuid4()))
        assert (claimed.id, claimed.status) == (id, "pending")

    def test_max_age_counts_from_the_redrive(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "max_age": 3600}})
        [id] = bury(rows, created_at=seconds_from_now(-90_000))
        Operator(store, "ann").act("redrive", [UUID(id)])
        [claimed] = take(store, {"orders": 1}, str(uuid4()))
        assert claimed.status == "pending"

    def test_a_message_that_killed_its_worker_still_travels_alone(
        self, store: Store, rows: Rows, operator: Operator
    ) -> None:
        [id] = bury(rows, last_error_code="unsettled")
        operator.act("redrive", [UUID(id)])
        assert take(store, {"orders": 1}, str(uuid4()))[0].alone

    def test_changes_only_dead_letters(self, rows: Rows, operator: Operator) -> None:
        [pending], [dead], nobody = rows.insert(), bury(rows), str(uuid4())
        done = operator.act("redrive", [UUID(id) for id in (pending, dead, nobody)])
        assert (done.count, done.missed) == (1, [UUID(pending), UUID(nobody)])
        assert rows.one(pending).history is None

    def test_leaves_messages_that_died_after_the_plan(self, rows: Rows, operator: Operator) -> None:
        first = bury(rows, 3)
        plan = operator.plan(DEAD)
        later = bury(rows, 2, dead_at=seconds_from_now(0))
        done = operator.act("redrive", [UUID(id) for id in first + later], until=plan.until)
        assert done.missed == [UUID(id) for id in later]
        assert list(operator.chosen(DEAD, plan.until)) == []

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({}, "abcd"),
            ({"destination": "mails"}, "d"),
            ({"event_type": "order.*"}, "abc"),
            ({"event_type": "order_*"}, ""),
            ({"event_type": "order.p?id"}, "b"),
            ({"code": "timeout"}, "c"),
            ({"key": "k"}, "b"),
            ({"older_than": 3600}, "c"),
            ({"newer_than": 3600}, "abd"),
            ({"destination": "orders", "newer_than": 3600, "key": "k"}, "b"),
            ({"group": "of a"}, "a"),
        ],
    )
    def test_chooses_by_filter_in_the_order_of_death(
        self, rows: Rows, operator: Operator, store: Store, wanted: dict[str, Any], expected: str
    ) -> None:
        ids = {
            "d": bury(rows, destination="mails", event_type="mail.sent", dead_at=seconds_from_now(-10))[0],
            "c": bury(
                rows, last_error_code="timeout", created_at=seconds_from_now(-7200), dead_at=seconds_from_now(-20)
            ),
            "b": bury(rows, event_type="order.paid", key="k", dead_at=seconds_from_now(-30))[0],
            "a": bury(rows, event_type="order.created", dead_at=seconds_from_now(-40))[0],
        }
        ids["c"] = ids["c"][0]
        names = {UUID(id): name for name, id in ids.items()}
        rows.insert(3)
        if "group" in wanted:
            [group] = [g["group"] for g in Lookup(store).groups()[0] if str(g["id"]) == ids["a"]]
            wanted = {"group": group}
        plan = operator.plan(Filter(states=("dead",), **wanted))
        chosen = operator.chosen(Filter(states=("dead",), **wanted), plan.until)
        assert "".join(names[id] for id in chosen) == expected
        assert plan.count == sum(kind.count for kind in plan.kinds) == len(expected)
        assert {names[kind.example] for kind in plan.kinds} <= set(expected)

    def test_pages_miss_no_message_that_died_at_the_same_time(
        self, rows: Rows, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.operating.messages.acts.LOOK", 7)
        moment = text("timestamptz '2026-01-01'")
        ids = bury(rows, 20, dead_at=seconds_from_now(-5))
        rows.change(ids, dead_at=moment)
        bury(rows, 10, event_type="other")
        for wanted in (DEAD, Filter(states=("dead", "pending"))):
            found = list(operator.chosen(wanted, operator.plan(wanted).until))
            assert len(found) == len(set(found)) == 30
            assert operator.plan(wanted).count == 30
        wanted = Filter(states=("dead",), event_type="other")
        assert len(list(operator.chosen(wanted, operator.plan(wanted).until))) == 10


class TestRaces:
    def test_two_at_once_take_each_message_once(self, new_store: MakeStore, rows: Rows, monkeypatch: Any) -> None:
        monkeypatch.setattr("outbox_tasks.operating.messages.acts.BATCH", 20)
        ids = [UUID(id) for id in bury(rows, 600)]
        barrier = threading.Barrier(2)

        def redrive(who: str) -> Any:
            operator = Operator(new_store(), who)
            barrier.wait()
            return operator.act("redrive", ids)

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(redrive, ("ann", "bob"))
        assert first.count + second.count == 600
        assert {row.status for row in rows.hot()} == {"pending"}
        assert all(len(row.history) == 1 for row in rows.hot())
        assert [act.count for act in acts(rows)] == [done.count for done in (first, second)] or [
            act.count for act in acts(rows)
        ] == [done.count for done in (second, first)]

    def test_beside_claims_delivers_each_message_once(self, new_store: MakeStore, rows: Rows) -> None:
        """A claim that runs meanwhile leases what has just been redriven, and no row is in two hands."""
        ids = [UUID(id) for id in bury(rows, 300)]
        store, taken = new_store(), []
        over = threading.Event()

        def claim() -> None:
            finished = False
            while not finished:
                last = over.is_set()
                found = take(store, {"orders": 10}, str(uuid4()))
                taken.extend(row.id for row in found)
                finished = last and not found

        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(claim)
            done = Operator(new_store(), "ann").act("redrive", ids, rate=3000)
            over.set()
            claiming.result(timeout=30)
        assert done.count == 300
        assert sorted(taken) == sorted(map(str, ids))

    def test_if_killed_the_audit_says_how_much_was_done(self, store: Store, rows: Rows) -> None:
        ids = bury(rows, 200)
        code = (
            "import sys, uuid; from outbox_tasks.operating.messages.acts import Operator;"
            "from outbox_tasks.relay.store import Store;"
            "from outbox_tasks.settings import Settings; store = Store.connect(Settings());"
            "Operator(store, 'ann').act('redrive', [uuid.UUID(id) for id in sys.argv[1:]], rate=40)"
        )
        place = store.settings
        environment = {**os.environ, "OUTBOX_DATABASE_URL": str(place.database_url)}
        environment |= {"OUTBOX_DATABASE_SCHEMA": str(place.database_schema), "OUTBOX_CONFIG": os.devnull}
        with subprocess.Popen([sys.executable, "-c", code, *ids], env=environment) as process:
            eventually(lambda: [row for row in rows.hot() if row.status == "pending"], 60)
            process.kill()
        redriven = [row for row in rows.hot() if row.status == "pending"]
        [act] = acts(rows)
        assert 0 < act.count == len(redriven) < 200
        assert all(row.history[-1]["entry"] == act.seq for row in redriven)
        assert Operator(store, "bob").act("redrive", [UUID(id) for id in ids]).count == 200 - act.count

    def test_skips_locked_rows(self, rows: Rows, operator: Operator) -> None:
        ids = [UUID(id) for id in bury(rows, 2)]
        with rows.engine.connect() as other, other.begin():
            schema = rows.tables.messages.schema
            other.execute(text(f"SELECT FROM {schema}.outbox_dead WHERE seq = {rows.one(ids[0]).seq} FOR UPDATE"))
            assert operator.act("redrive", ids).missed == [ids[0]]
        assert operator.act("redrive", ids).missed == [ids[1]]

    def test_a_leased_message_is_not_discarded(
        self, store: Store, rows: Rows, lease: Lease, operator: Operator
    ) -> None:
        bundle = lease(2)
        ids = [UUID(ticket.id) for ticket in bundle.tickets]
        assert operator.act("discard", ids, states=("pending", "dead")).missed == ids
        begun = store.begin(bundle)
        assert operator.act("discard", ids, states=("pending", "dead")).missed == ids
        assert store.settle(bundle.lease, "orders", [Verdict(t, Step.SENT) for t in after(begun)]) == set(map(str, ids))
        assert [row.state for row in rows.archived()] == ["sent", "sent"]

    def test_discards_and_claims_share_the_messages(self, new_store: MakeStore, rows: Rows) -> None:
        ids = [UUID(id) for id in rows.insert(400)]
        store, taken = new_store(), []

        def claim() -> None:
            while found := take(store, {"orders": 7}, str(uuid4())):
                taken.extend(row.id for row in found)

        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(claim)
            done = Operator(new_store(), "ann").act("discard", reversed(ids), states=("pending",), rate=4000)
            claiming.result(timeout=30)
        assert done.count + len(taken) == 400
        assert {row.id for row in rows.archived()} == set(ids) - {UUID(id) for id in taken}


class TestDiscard:
    def test_moves_the_message_to_the_archive(self, rows: Rows, operator: Operator) -> None:
        [dead], [waits] = bury(rows, key="k"), rows.insert(key="k")
        done = operator.act("discard", [UUID(dead), UUID(waits)], states=("dead", "retrying"))
        assert done.count == 2
        assert rows.hot() == []
        first, second = rows.archived()
        assert (first.state, first.last_error_code, first.key, first.attempts) == ("discarded", "http_400", "k", 3)
        assert (second.last_error_code, second.last_error) == ("discarded", "discarded by ann: the shop is back")
        assert [row.history[-1]["what"] for row in (first, second)] == ["discarded", "discarded"]
        assert [(act.action, act.count) for act in acts(rows)] == [("discard", 2)]

    def test_of_dead_letters_leaves_waiting_messages(self, rows: Rows, operator: Operator) -> None:
        [waits] = rows.insert()
        assert operator.act("discard", [UUID(waits)]).missed == [UUID(waits)]

    def test_deletes_if_sent_messages_are_deleted_too(self, new_store: MakeStore, rows: Rows) -> None:
        [id] = bury(rows)
        assert Operator(new_store(archive="delete"), "ann").act("discard", [UUID(id)]).count == 1
        assert (rows.hot(), rows.archived(), acts(rows)[0].count) == ([], [], 1)

    def test_frees_the_next_message_of_its_key(self, store: Store, rows: Rows, operator: Operator) -> None:
        [dead], [waits] = bury(rows, key="k"), rows.insert(key="k")
        assert take(store, {"orders": 10}, str(uuid4())) == []
        operator.act("discard", [UUID(dead)])
        assert [claimed.id for claimed in take(store, {"orders": 10}, str(uuid4()))] == [waits]


class TestEdit:
    def test_replaces_the_payload_and_keeps_the_former_one(self, rows: Rows, store: Store, operator: Operator) -> None:
        [id] = bury(rows, payload=b"\x00\xff" * 100, content_type="image/png")
        entry = operator.edit(UUID(id), b"\x00\xff" * 100, b'{"id": 42}', "application/json")
        row = rows.one(id)
        assert (row.payload, row.content_type, row.status) == (b'{"id": 42}', "application/json", "dead")
        assert [note["what"] for note in row.history] == ["edited"]
        [act] = acts(rows)
        assert (act.seq, act.action, act.target, act.count, act.who) == (entry, "edit", id, 1, "ann")
        assert Lookup(store).former_payload(entry) == b"\x00\xff" * 100
        assert "former" not in Lookup(store).acts(1)[0]["facts"]

    @pytest.mark.parametrize(
        ("payload", "kind", "error"),
        [
            (b"{", "application/json", EditRefused),
            (b"\xff", "application/cloudevents+json; charset=utf-8", EditRefused),
            (b'"' + b"x" * 100 + b'"', "application/json", PayloadTooLarge),
        ],
    )
    def test_refuses_a_payload_that_could_not_be_delivered(
        self, new_store: MakeStore, rows: Rows, payload: bytes, kind: str, error: type[Exception]
    ) -> None:
        operator = Operator(new_store(destinations={"orders": {"url": "a://b", "max_bytes": 99}}), "ann")
        [id] = bury(rows)
        with pytest.raises(error):
            operator.edit(UUID(id), b"{}", payload, kind)
        assert (rows.one(id).payload, acts(rows)) == (b"{}", [])

    def test_changes_only_the_payload_of_dead_letters(self, rows: Rows, operator: Operator) -> None:
        [id] = rows.insert()
        with pytest.raises(NotDead, match="it is pending"):
            operator.edit(UUID(id), b"{}", b"[]", "application/json")
        with pytest.raises(UnknownMessage):
            operator.edit(uuid4(), b"{}", b"[]", "application/json")

    def test_is_refused_if_the_message_was_redriven_or_edited_meanwhile(self, rows: Rows, operator: Operator) -> None:
        [id] = bury(rows)
        operator.edit(UUID(id), b"{}", b"[1]", "application/json")
        with pytest.raises(EditRefused, match="somebody else has changed"):
            operator.edit(UUID(id), b"{}", b"[2]", "application/json")
        operator.act("redrive", [UUID(id)])
        with pytest.raises(NotDead):
            operator.edit(UUID(id), b"[1]", b"[2]", "application/json")
        assert rows.one(id).payload == b"[1]"

    def test_waits_for_a_redrive_that_is_about_to_commit(self, rows: Rows, new_store: MakeStore) -> None:
        [id] = bury(rows)
        dead = f"{rows.tables.messages.schema}.outbox_dead"
        with ThreadPoolExecutor(1) as pool, rows.engine.connect() as other:
            with other.begin():
                gone = f"WITH gone AS (DELETE FROM {dead} WHERE seq = {rows.one(id).seq} RETURNING seq, destination)"
                ready = f"{rows.tables.messages.schema}.outbox_ready (seq, destination, size)"
                other.execute(text(f"{gone} INSERT INTO {ready} SELECT seq, destination, 2 FROM gone"))
                edit = pool.submit(Operator(new_store(), "ann").edit, UUID(id), b"{}", b"[]", "application/json")
                eventually(lambda: rows._read(text("SELECT FROM pg_locks WHERE NOT granted")))
            with pytest.raises(NotDead):
                edit.result(timeout=30)


class TestPurge:
    def test_deletes_dead_letters_for_good(self, rows: Rows, operator: Operator) -> None:
        old = bury(rows, 2, dead_at=seconds_from_now(-7200))
        [new] = bury(rows)
        plan = operator.plan(DEAD, until=lambda now: now - timedelta(hours=1))
        assert plan.count == 2
        done = operator.act("purge", [UUID(id) for id in (*old, new)], until=plan.until)
        assert (done.count, done.missed) == (2, [UUID(new)])
        assert ([str(row.id) for row in rows.hot()], rows.archived()) == ([new], [])
        assert acts(rows)[0].action == "purge"


class TestOrder:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        dead=st.lists(st.booleans(), min_size=6, max_size=6),
        keys=st.lists(st.sampled_from(["a", "b"]), min_size=6, max_size=6),
        shuffled=st.permutations(range(6)),
    )
    def test_redriven_messages_are_delivered_in_the_order_of_their_key(
        self, store: Store, rows: Rows, operator: Operator, dead: list[bool], keys: list[str], shuffled: list[int]
    ) -> None:
        """Whichever were dead, and in whatever order they are redriven, each by itself."""
        rows.clear()
        ids = [(bury(rows, key=key) if died else rows.insert(key=key))[0] for died, key in zip(dead, keys, strict=True)]
        delivered: list[str] = []
        for n in [n for n in shuffled if dead[n]]:
            operator.act("redrive", [UUID(ids[n])])
            delivered += deliver(store)
        delivered += deliver(store)
        for key in ("a", "b"):
            own = [id for id, its in zip(ids, keys, strict=True) if its == key]
            assert [id for id in delivered if id in own] == own


def deliver(store: Store) -> list[str]:
    """Claim and send all that may go; returns the ids in the order of their sends."""
    sent: list[str] = []
    while claimed := take(store, {"orders": 10}, lease := str(uuid4())):
        bundle = bundle_of(claimed, lease)
        tickets = after(store.begin(bundle))
        order = [claimed.id for claimed in claimed]
        store.settle(lease, "orders", [Verdict(ticket, Step.SENT) for ticket in tickets])
        sent += sorted((ticket.id for ticket in tickets), key=order.index)
    return sent
