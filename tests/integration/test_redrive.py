"""What people do to messages: each message once, nothing lost, and all of it kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from outbox_tasks.errors import ActConflict, ActRefused, PayloadTooLarge, UnknownMessage
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.acting import acted

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
    def test_makes_a_dead_letter_due_with_all_its_attempts(self, store: Store, rows: Rows) -> None:
        [id] = bury(rows, outages=2, begun=True, deliver_at=seconds_from_now(-9000))
        done = acted(store, "redrive", [id], why="the shop is back")
        assert (done.count, done.not_changed, done.stopped) == (1, [], False)
        row = rows.one(id)
        assert (row.status, row.attempts, row.outages, row.begun, row.lease) == ("pending", 0, 0, False, None)
        assert (row.dead_at, row.last_error_code) == (None, "http_400")
        [note] = row.history
        assert (note["what"], note["by"], note["why"], note["attempts"]) == ("redriven", "ann", "the shop is back", 3)
        [act] = acts(rows)
        assert (act.who, act.why, act.action, act.target, act.count) == ("ann", "the shop is back", "redrive", id, 1)
        assert note["entry"] == act.seq
        [single] = take(store, {"orders": 1})
        assert single.id == id

    def test_leaves_messages_that_died_after_the_plan_and_others(
        self, store: Store, rows: Rows, operator: Operator
    ) -> None:
        first, others = bury(rows, 3), [*rows.insert(), str(uuid4())]
        plan = operator.plan(DEAD)
        later = bury(rows, 2, dead_at=seconds_from_now(0))
        done = acted(store, "redrive", first + others + later, until=plan.until)
        assert (done.count, done.not_changed) == (3, [UUID(id) for id in others + later])
        assert rows.one(others[0]).history is None
        assert list(operator.chosen(DEAD, plan.until)) == []

    def test_chooses_by_filter_in_the_order_of_death(self, rows: Rows, operator: Operator, store: Store) -> None:
        long_ago = seconds_from_now(-7200)
        ids = {
            "d": bury(rows, destination="mails", event_type="mail.sent", dead_at=seconds_from_now(-10)),
            "c": bury(rows, last_error_code="timeout", created_at=long_ago, dead_at=seconds_from_now(-20)),
            "b": bury(rows, event_type="order.paid", key="k", dead_at=seconds_from_now(-30)),
            "a": bury(rows, event_type="order.created", dead_at=seconds_from_now(-40)),
        }
        names = {UUID(id): name for name, [id] in ids.items()}
        rows.insert(3)
        [group] = [g["group"] for g in Lookup(store).groups()[0] if names[UUID(str(g["id"]))] == "a"]
        wanted: list[tuple[dict[str, Any], str]] = [
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
            ({"group": group}, "a"),
        ]
        for fields, expected in wanted:
            plan = operator.plan(Filter(states=("dead",), **fields))
            chosen = operator.chosen(Filter(states=("dead",), **fields), plan.until)
            assert "".join(names[id] for id in chosen) == expected, fields
            assert plan.count == sum(kind.count for kind in plan.kinds) == len(expected), fields
            assert {names[kind.example] for kind in plan.kinds} <= set(expected), fields

    def test_pages_miss_no_message_that_died_at_the_same_time(
        self, rows: Rows, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.operating.messages.acts.ROWS_A_LOOK", 7)
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


class TestDiscard:
    def test_of_dead_letters_leaves_waiting_messages(self, store: Store, rows: Rows) -> None:
        [waits] = rows.insert()
        assert acted(store, "discard", [waits]).not_changed == [UUID(waits)]


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
            (b"{", "application/json", ActRefused),
            (b"\xff", "application/cloudevents+json; charset=utf-8", ActRefused),
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
        with pytest.raises(ActConflict, match="is pending, and only"):
            operator.edit(UUID(id), b"{}", b"[]", "application/json")
        with pytest.raises(UnknownMessage):
            operator.edit(uuid4(), b"{}", b"[]", "application/json")

    def test_is_refused_if_the_message_was_redriven_or_edited_meanwhile(
        self, store: Store, rows: Rows, operator: Operator
    ) -> None:
        [id] = bury(rows)
        operator.edit(UUID(id), b"{}", b"[1]", "application/json")
        with pytest.raises(ActRefused, match="somebody else has changed"):
            operator.edit(UUID(id), b"{}", b"[2]", "application/json")
        acted(store, "redrive", [id])
        with pytest.raises(ActConflict):
            operator.edit(UUID(id), b"[1]", b"[2]", "application/json")
        assert rows.one(id).payload == b"[1]"

    def test_is_refused_if_the_message_is_redriven_at_this_moment(
        self, store: Store, rows: Rows, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [id] = bury(rows)
        monkeypatch.setattr(operator, "check", lambda *_: acted(store, "redrive", [id]))
        with pytest.raises(ActConflict):
            operator.edit(UUID(id), b"{}", b"[]", "application/json")
        assert rows.one(id).payload == b"{}"


class TestPurge:
    def test_deletes_dead_letters_for_good(self, store: Store, rows: Rows, operator: Operator) -> None:
        old = bury(rows, 2, dead_at=seconds_from_now(-7200))
        [new] = bury(rows)
        done = acted(store, "purge", [*old, new], until=datetime.now(UTC) - timedelta(hours=1))
        assert (done.count, done.not_changed) == (2, [UUID(new)])
        assert ([str(row.id) for row in rows.hot()], rows.archived()) == ([new], [])
        assert acts(rows)[0].action == "purge"
