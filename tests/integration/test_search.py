"""What people find: the right messages, and all of them or else it is said."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from outbox_tasks.errors import UnknownMessage
from outbox_tasks.model import Step, Verdict, sibling, uuid7
from outbox_tasks.operating.messages.find import STATES, Filter, Lookup
from outbox_tasks.operating.messages.paging import read_page
from outbox_tasks.relay.store import Store
from tests.conftest import Rows, seconds_from_now
from tests.integration.acting import acted
from tests.integration.conftest import Lease
from tests.integration.test_redrive import bury


@pytest.fixture
def lookup(store: Store) -> Lookup:
    return Lookup(store)


def found(store: Store, size: int = 50, **wanted: Any) -> list[str]:
    page = read_page(store, Filter(**wanted), size)
    return [str(message["id"]) for message in page.messages + page.aside]


@pytest.fixture
def one_of_each(store: Store, rows: Rows, lease: Lease) -> dict[str, str]:
    """A message in every state."""
    batch = lease(2)
    sent, failed = batch.messages
    store.settle(batch.token, "orders", [Verdict(sent, Step.SENT), Verdict(failed, Step.LATER, 60.0, "busy", "later")])
    ids = {"sent": sent.id, "retrying": failed.id, "leased": lease(1).messages[0].id}
    ids["dead"], ids["discarded"] = bury(rows, 2)
    acted(store, "discard", [ids["discarded"]])
    [ids["pending"]] = rows.insert()
    [ids["scheduled"]] = rows.insert(locked_until=seconds_from_now(3600))
    handed = {"attempts": 1, "lease": uuid4(), "handed_at": seconds_from_now(0), "locked_until": seconds_from_now(60)}
    [ids["handed over"]] = rows.insert(**handed)
    [ids["running"]] = rows.insert(**handed, begun=True)
    return ids


class TestList:
    def test_shows_and_finds_the_states_of_the_view(
        self, lookup: Lookup, store: Store, rows: Rows, one_of_each: dict[str, str]
    ) -> None:
        shown = {str(message["id"]): message["state"] for message in read_page(store, Filter(), 50).messages}
        assert shown == {str(row.id): row.state for row in rows.shown()} == {id: s for s, id in one_of_each.items()}
        assert set(one_of_each) == set(STATES)
        for state, id in one_of_each.items():
            assert found(store, states=(state,)) == [id], state
            assert found(store, states=(state,), destination="orders") == [id], state
            assert found(store, states=(state,), destination="mails") == [], state
            one = lookup.one(UUID(id))
            assert (one["state"], one["finished_at"] is not None) == (state, state in ("sent", "discarded"))
        with pytest.raises(UnknownMessage):
            lookup.one(uuid4())

    def test_is_the_newest_first_each_once(self, store: Store, rows: Rows) -> None:
        ids = [rows.insert()[0] for _ in range(5)]
        assert found(store) == ids[::-1]
        assert found(store, destination="orders") == ids[::-1]
        for size in range(1, 6):
            assert found(store, size=size) == ids[::-1][:size]

    def test_ids_without_a_time_are_found_too(self, store: Store, rows: Rows) -> None:
        own = str(uuid4())
        rows.insert(id=UUID(own), created_at=seconds_from_now(-60))
        [id] = rows.insert()
        assert found(store) == [id, own]
        assert found(store, older_than=30.0) == [own]

    def test_the_second_destination_of_a_message_is_as_old_as_the_first(self) -> None:
        first, own = uuid7(), uuid4()
        second = sibling(first, "audit")
        assert (second.version, second.variant, second.int >> 80) == (7, first.variant, first.int >> 80)
        assert len({first, second, sibling(first, "mails"), sibling(own, "audit"), sibling(own, "mails")}) == 5
        assert second == sibling(first, "audit")
        assert sibling(own, "audit").version == 4

    def test_filters(self, store: Store, rows: Rows) -> None:
        old = {"created_at": seconds_from_now(-7200), "id": UUID(int=7 << 76)}
        ids = {
            rows.insert(event_type="order_paid", **old)[0]: "c",
            rows.insert(event_type="order.made", attempts=1, last_error_code="busy")[0]: "a",
            rows.insert(event_type="order.paid", key="k")[0]: "b",
        }
        wanted: list[tuple[dict[str, Any], str]] = [
            ({"event_type": "order.*"}, "ab"),
            ({"event_type": "order.p?id"}, "b"),
            ({"event_type": "%"}, ""),
            ({"event_type": "order_paid"}, "c"),
            ({"event_type": "order?paid"}, "bc"),
            ({"key": "k"}, "b"),
            ({"key": "k", "states": ("dead",)}, ""),
            ({"older_than": 3600.0}, "c"),
            ({"newer_than": 3600.0}, "ab"),
            ({"code": "busy"}, "a"),
        ]
        for fields, expected in wanted:
            assert sorted(ids[id] for id in found(store, **fields)) == sorted(expected), fields

    def test_old_messages_are_found_behind_many_newer_ones(
        self, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.operating.messages.paging.ROWS_LOOKED_AT", 5)
        old = [rows.insert(created_at=seconds_from_now(-n))[0] for n in (9000, 8000, 7000)]
        new = [rows.insert(created_at=seconds_from_now(-n))[0] for n in range(200, 100, -1)]
        for id in (*old, *new):
            rows.settle(id)
        assert found(store, older_than=3600.0) == old[::-1]
        assert found(store, older_than=7500.0) == old[1::-1]
        assert found(store, older_than=90_000.0) == []
        page = read_page(store, Filter(older_than=3600.0), 2)
        assert [str(message["id"]) for message in page.messages] == old[:0:-1]
        assert page.complete

    def test_messages_at_work_that_a_backlog_hides_are_found(
        self, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the middle of the backlog: neither among the newest nor among the oldest."""
        monkeypatch.setattr("outbox_tasks.operating.messages.paging.ROWS_LOOKED_AT", 50)
        rows.insert(100)
        [leased] = rows.insert(lease=uuid4(), locked_until=seconds_from_now(30))
        [mail] = rows.insert(destination="mails")
        [keyed] = rows.insert(key="k")
        [dead] = bury(rows)
        rows.insert(100)
        assert found(store, states=("leased",)) == [leased]
        assert found(store, destination="mails") == [mail]
        assert found(store, key="k") == [keyed]
        assert found(store, states=("dead",)) == [dead]
        assert found(store, destination="orders", states=("dead", "leased")) == [dead, leased]

    def test_says_when_it_has_not_looked_at_all_rows(
        self, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("ROWS_LOOKED_AT", "ROWS_LOOKED_AT_FIRST"):
            monkeypatch.setattr(f"outbox_tasks.operating.messages.paging.{name}", 50)
        rows.insert(40, event_type="other")
        seen = read_page(store, Filter(event_type="order.*"), 20)
        assert (seen.messages, seen.complete) == ([], True)
        rows.insert(40, event_type="other")
        seen = read_page(store, Filter(event_type="order.*"), 20)
        assert (seen.messages, seen.complete) == ([], False)
        assert seen.reached is not None


class TestOne:
    def test_shows_its_whole_history(self, lookup: Lookup, rows: Rows, store: Store) -> None:
        [id] = bury(rows, key="k", payload=b"\x00\xff", headers={"tenant": "t1"})
        acted(store, "redrive", [id], why="it is mended")
        message = lookup.one(UUID(id))
        assert message is not None
        assert (message["state"], message["payload"], message["headers"]) == ("pending", b"\x00\xff", {"tenant": "t1"})
        assert [entry["what"] for entry in message["history"]] == ["redriven"]
        assert [(act["action"], act["who"], act["why"]) for act in message["audit"]] == [
            ("redrive", "ann", "it is mended")
        ]
        assert message["ahead"] is None

    @pytest.mark.parametrize(("on_dead", "held_up"), [("block", True), ("skip", False)])
    def test_says_what_it_waits_for(self, new_store: Any, rows: Rows, on_dead: str, held_up: bool) -> None:
        lookup = Lookup(new_store(destinations={"orders": {"url": "a://b", "on_dead": on_dead}}))
        [dead] = bury(rows, key="k")
        [waits] = rows.insert(key="k")
        message = lookup.one(UUID(waits))
        assert message is not None
        expected = {"id": UUID(dead), "state": "dead", "count": 1}
        ahead = message["ahead"] and {name: message["ahead"][name] for name in expected}
        assert ahead == (expected if held_up else None)


class TestGroups:
    def test_differ_by_their_cause(self, lookup: Lookup, store: Store, rows: Rows) -> None:
        for n in range(3):
            bury(rows, last_error=f"no such order {n} for '{n}ab' ({uuid4()})", dead_at=seconds_from_now(-10 * n - 1))
        bury(rows, 2, destination="mails")
        bury(rows, event_type="order.paid")
        rows.insert(5)
        groups, complete = lookup.groups()
        assert [(g["count"], g["destination"], g["event_type"]) for g in groups] == [
            (3, "orders", "order.created"),
            (2, "mails", "order.created"),
            (1, "orders", "order.paid"),
        ]
        assert complete
        assert 19 < (groups[0]["dead_at"] - groups[0]["first_at"]).total_seconds() < 21
        assert "no such order 0" in groups[0]["last_error"]
        assert [g["count"] for g in lookup.groups("mails")[0]] == [2]
        assert found(store, group=groups[1]["group"]) == found(store, destination="mails")

    def test_are_read_a_page_at_a_time(self, lookup: Lookup, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("outbox_tasks.operating.messages.find.GROUPS_A_PAGE", 3)
        for n in range(10):
            bury(rows, event_type=f"order.{n}")
        groups, complete = lookup.groups()
        assert {g["event_type"] for g in groups} == {f"order.{n}" for n in range(10)}
        assert complete
        monkeypatch.setattr("outbox_tasks.operating.messages.find.GROUPS_AT_MOST", 6)
        groups, complete = lookup.groups()
        assert (len(groups), complete) == (6, False)
