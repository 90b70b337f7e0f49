"""What people do to messages: which ones an act takes, and when an edit is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from outbox_tasks.errors import ActConflict, ActRefused, PayloadTooLarge, UnknownMessage
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.acting import DEAD, acted, acts, bury


@pytest.fixture
def operator(store: Store) -> Operator:
    return Operator(store, "ann", "the shop is back")


class TestPlan:
    def test_has_the_messages_of_a_filter(self, rows: Rows, operator: Operator, store: Store) -> None:
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
            ({"event_type": "order.*"}, "abc"),
            ({"older_than": 3600}, "c"),
            ({"destination": "orders", "newer_than": 3600, "key": "k"}, "b"),
            ({"group": group}, "a"),
        ]
        for fields, expected in wanted:
            plan = operator.plan(Filter(states=("dead",), **fields))
            assert plan.count == sum(kind.count for kind in plan.kinds) == len(expected), fields
            assert {names[kind.example] for kind in plan.kinds} <= set(expected), fields

    def test_and_an_act_miss_no_message_that_died_at_the_same_time(
        self, rows: Rows, store: Store, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.operating.messages.acts.ROWS_A_LOOK", 7)
        monkeypatch.setattr("outbox_tasks.operating.messages.acts.BATCH_MESSAGES", 4)
        moment = text("timestamptz '2026-01-01'")
        rows.change(bury(rows, 20, dead_at=seconds_from_now(-5)), dead_at=moment)
        others = bury(rows, 10, event_type="other")
        assert operator.plan(Filter(states=("dead",), event_type="other")).count == 10
        for group in Lookup(store).groups()[0]:
            assert operator.plan(Filter(group=group["group"])).count == group["count"]
        for wanted in (DEAD, Filter(states=("dead", "pending"))):
            assert operator.plan(wanted).count == 30
        plan = operator.plan(DEAD, seconds=0)
        assert (plan.count, plan.more) == (7, True)
        with monkeypatch.context() as patched:
            patched.setattr("outbox_tasks.operating.messages.acts.COUNTED_AT_MOST", 8)
            plan = operator.plan(DEAD)
            assert (plan.count, plan.more) == (14, True)
        assert acted(store, "redrive").count == 30
        rows.change(others, status="dead", dead_at=moment)
        assert acted(store, "discard", states=("dead", "pending")).count == 30

    def test_acts_take_the_first_to_die_first(self, store: Store, rows: Rows) -> None:
        [second], [first] = (bury(rows, dead_at=seconds_from_now(-ago)) for ago in (10, 20))
        assert acted(store, "redrive", limit=1).count == 1
        assert (rows.state(first), rows.state(second)) == ("pending", "dead")


class TestEdit:
    def test_refuses_a_payload_that_could_not_be_delivered_and_what_is_not_dead_or_was_edited_meanwhile(
        self, new_store: MakeStore, rows: Rows
    ) -> None:
        store = new_store(destinations={"orders": {"url": "a://b", "max_bytes": 99}})
        operator = Operator(store, "ann")
        [id], [waits] = bury(rows), rows.insert()
        bad: list[tuple[bytes, str, type[Exception]]] = [
            (b"{", "application/json", ActRefused),
            (b"\xff", "application/cloudevents+json; charset=utf-8", ActRefused),
            (b'"' + b"x" * 100 + b'"', "application/json", PayloadTooLarge),
        ]
        for payload, kind, error in bad:
            with pytest.raises(error):
                operator.edit(UUID(id), b"{}", payload, kind)
        with pytest.raises(ActConflict, match="is pending, and only"):
            operator.edit(UUID(waits), b"{}", b"[]", "application/json")
        with pytest.raises(UnknownMessage):
            operator.edit(uuid4(), b"{}", b"[]", "application/json")
        assert (rows.one(id).payload, acts(rows)) == (b"{}", [])
        entry = operator.edit(UUID(id), b"{}", b"[1]", "application/json")
        assert Lookup(store).former_payload(entry) == b"{}"
        assert "former" not in Lookup(store).acts(1)[0]["facts"]
        with pytest.raises(ActRefused, match="somebody else has changed"):
            operator.edit(UUID(id), b"{}", b"[2]", "application/json")
        assert rows.one(id).payload == b"[1]"
