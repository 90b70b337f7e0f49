"""What applications and people have in SQL: the function that publishes, and the view of all messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.conftest import Rows, eventually, seconds_from_now

HANDED = {"attempts": 1, "lease": UUID(int=1), "handed_at": seconds_from_now(-9)}


class TestOutboxPublish:
    """The SQL function for writers in any language."""

    @pytest.fixture
    def call(self, connection: Connection, rows: Rows, schema: str) -> Iterator[Any]:
        def call(arguments: str, **values: Any) -> UUID:
            id = connection.scalar(text(f"SELECT {schema}.outbox_publish({arguments})"), values)
            assert isinstance(id, UUID)
            return id

        yield call
        connection.rollback()

    @pytest.mark.parametrize(
        ("payload", "stored", "content_type"),
        [
            ("""'{"id": 42}'""", b'{"id": 42}', "application/json"),
            ("""'{"id":  42}'::text""", b'{"id":  42}', "application/json"),
            ("""'{"b": 1, "id":  42}'::jsonb""", b'{"b": 1, "id": 42}', "application/json"),
            ("'null'", b"null", "application/json"),
            (r"'\x00ff'::bytea", b"\x00\xff", "application/octet-stream"),
            ("'é'::text, content_type => 'text/plain'", "é".encode(), "text/plain"),
        ],
    )
    def test_takes_text_json_and_bytes(
        self, call: Any, connection: Connection, rows: Rows, payload: str, stored: bytes, content_type: str
    ) -> None:
        id = call(f"'order.created', {payload}, destination => 'orders'")
        connection.commit()
        row = rows.one(id)
        assert (row.payload, row.content_type, row.event_type) == (stored, content_type, "order.created")

    def test_takes_all_by_name(self, call: Any, connection: Connection, rows: Rows) -> None:
        given = UUID("0190a5d2-7c4e-7000-8000-000000000001")
        id = call(
            "event_type => 'order.created', payload => '{}', key => 'order:42', destination => 'orders', "
            "headers => '{\"tenant\": \"t1\"}', id => :id, deliver_at => '2030-01-01T00:00Z', "
            "aggregate_type => 'order', aggregate_id => '42'",
            id=given,
        )
        connection.commit()
        row = rows.one(id)
        assert id == given
        assert (row.key, row.headers, row.aggregate_type, row.aggregate_id) == (
            "order:42", {"tenant": "t1"}, "order", "42",
        )  # fmt: skip
        assert row.locked_until == datetime(2030, 1, 1, tzinfo=UTC)
        assert rows.state(id) == "scheduled"

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ("'', '{}', destination => 'orders'", "event_type must have 1 to 255"),
            ("NULL, '{}', destination => 'orders'", "event_type must have 1 to 255"),
            ("repeat('x', 256), '{}', destination => 'orders'", "event_type must have 1 to 255"),
            ("'a', '{}'", "destination is missing"),
            ("'a', '{}', destination => ''", "destination is missing"),
            ("'a', '{}', destination => 'orders', key => repeat('x', 256)", "key must be null or have 1 to 255"),
            ("'a', '{}', destination => 'orders', key => ''", "key must be null or have 1 to 255"),
            ("'a', '{}', destination => 'orders', deliver_at => 'infinity'", "a time in the years 1 to 9999"),
            ("'a', '{}', destination => 'orders', deliver_at => '-infinity'", "a time in the years 1 to 9999"),
            ("'a', '{}', destination => 'orders', deliver_at => '10000-01-01'", "a time in the years 1 to 9999"),
            ("'a', '{}', destination => 'orders', deliver_at => '0044-03-15 BC'", "a time in the years 1 to 9999"),
            ("'a', NULL::text, destination => 'orders'", "payload is null"),
            ("'a', NULL::jsonb, destination => 'orders'", "payload is null"),
            ("'a', NULL::bytea, destination => 'orders'", "payload is null"),
            ("'a', '{}', destination => 'orders', headers => '[]'", "headers must be a JSON object"),
            (
                "'a', '{}', destination => 'orders', headers => '{\"celery-message\": \"{}\"}'",
                "is for stored tasks only",
            ),
            ("'a', '{}', destination => 'orders', headers => NULL", "headers must be a JSON object"),
            ("'a', '{oops', destination => 'orders'", "invalid input syntax for type json"),
        ],
    )
    def test_refuses_messages_that_can_not_be_delivered(
        self, call: Any, rows: Rows, arguments: str, reason: str
    ) -> None:
        with pytest.raises(DBAPIError, match=reason):
            call(arguments)
        assert rows.hot() == []

    def test_makes_ids_of_version_7_in_order_of_time(self, call: Any, connection: Connection, rows: Rows) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)
        ids = [call("'a', '{}', destination => 'orders'") for _ in range(3)]
        ids += rows.insert(100)
        stamps = [UUID(str(id)).int >> 80 for id in ids]
        assert {UUID(str(id)).version for id in ids} == {7}
        assert {UUID(str(id)).variant for id in ids} == {"specified in RFC 4122"}
        assert stamps == sorted(stamps)
        assert before.timestamp() * 1000 < stamps[0] < (before + timedelta(seconds=60)).timestamp() * 1000
        assert len(set(ids)) == 103

    def test_is_claimed_only_once_committed(self, call: Any, connection: Connection, store: Store) -> None:
        id = call("'a', '{}', destination => 'orders'")
        assert take(store, {"orders": 10}, str(UUID(int=1))) == []
        connection.commit()
        assert [row.id for row in take(store, {"orders": 10}, str(UUID(int=2)))] == [str(id)]

    def test_a_rolled_back_message_is_never_claimed(self, call: Any, connection: Connection, store: Store) -> None:
        call("'a', '{}', destination => 'orders'")
        connection.rollback()
        assert take(store, {"orders": 10}, str(UUID(int=1))) == []


class TestOutboxAll:
    """The view for people."""

    @pytest.mark.parametrize(
        ("state", "columns"),
        [
            ("pending", {}),
            ("scheduled", {"locked_until": seconds_from_now(60)}),
            ("leased", {"locked_until": seconds_from_now(60), "lease": UUID(int=1)}),
            ("leased", {"locked_until": seconds_from_now(60), "lease": UUID(int=1), "attempts": 2, "begun": True}),
            ("pending", {"locked_until": seconds_from_now(-1), "lease": UUID(int=1)}),
            ("retrying", {"locked_until": seconds_from_now(60), "lease": UUID(int=1), "attempts": 2}),
            ("retrying", {"locked_until": seconds_from_now(60), "attempts": 2}),
            ("retrying", {"attempts": 1}),
            ("dead", {"status": "dead", "dead_at": seconds_from_now(0)}),
            ("handed over", {**HANDED, "locked_until": seconds_from_now(60)}),
            ("running", {**HANDED, "locked_until": seconds_from_now(60), "begun": True}),
            ("retrying", {**HANDED, "locked_until": seconds_from_now(-1), "begun": True}),
        ],
    )
    def test_shows_a_hot_row_in_its_state(self, rows: Rows, state: str, columns: dict[str, Any]) -> None:
        [id] = rows.insert(**columns)
        assert rows.state(id) == state

    def test_shows_every_state_of_a_message_that_is_sent(self, rows: Rows, store: Store) -> None:
        [id] = rows.insert()
        lease = str(UUID(int=1))
        seen = [rows.state(id)]
        [row] = take(store, {"orders": 1}, lease)
        seen.append(rows.state(id))
        bundle = Bundle("orders", lease, (Ticket(row.id, 0, row.event_type),))
        begun = store.begin(bundle)
        seen.append(rows.state(id))
        ticket = Ticket(id, begun[id].attempts, row.event_type)
        store.settle(lease, "orders", [Verdict(ticket, Step.SENT)])
        seen.append(rows.state(id))
        assert seen == ["pending", "leased", "leased", "sent"]

    @pytest.mark.parametrize(
        ("payload", "shown"),
        [
            (b'{"id": 42}', '{"id": 42}'),
            ("naïve 😀".encode(), "naïve 😀"),
            (b"", ""),
            (b"\xff\x00", r"\xff00"),
            (b"NUL \x00", r"\x4e554c2000"),
        ],
    )
    def test_shows_any_payload(self, rows: Rows, payload: bytes, shown: str) -> None:
        rows.insert(payload=payload)
        [row] = rows.shown()
        assert row.payload == shown

    def test_shows_a_lease_that_ran_out_as_pending_again(self, rows: Rows, new_store: Any) -> None:
        store = new_store(queue_lease=0.2)
        [id] = rows.insert()
        take(store, {"orders": 1}, str(UUID(int=1)))
        assert rows.state(id) == "leased"
        eventually(lambda: rows.state(id) == "pending")
