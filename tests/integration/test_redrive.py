"""What people do to messages: which ones an act takes, and when an edit is refused."""

from __future__ import annotations

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
    def test_has_the_messages_of_a_filter_by_their_kind(self, rows: Rows, operator: Operator) -> None:
        [mail] = bury(rows, destination="mails", event_type="mail.sent", created_at=seconds_from_now(-7200))
        bury(rows, 2, last_error_code="timeout")
        rows.insert(3)
        plan = operator.plan(DEAD)
        orders = ("orders", "order.created", "dead", "timeout", 2)
        mails = ("mails", "mail.sent", "dead", "http_400", 1)
        assert [(k.destination, k.event_type, k.state, k.code, k.count) for k in plan.kinds] == [orders, mails]
        assert (plan.count, str(plan.kinds[1].example)) == (3, mail)
        assert operator.plan(Filter(states=("dead",), event_type="order.*")).count == 2
        assert operator.plan(Filter(states=("dead",), older_than=3600)).count == 1

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
