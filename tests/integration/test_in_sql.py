"""What applications and people have in SQL: the function that publishes, and the view of all messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tests.conftest import Rows


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

    def test_takes_text_json_and_bytes(self, call: Any, connection: Connection, rows: Rows) -> None:
        json = "application/json"
        payloads = {
            """'{"id": 42}'""": (b'{"id": 42}', json),
            """'{"id":  42}'::text""": (b'{"id":  42}', json),
            """'{"b": 1, "id":  42}'::jsonb""": (b'{"b": 1, "id": 42}', json),
            """'{"b": 1, "id":  42}'::json""": (b'{"b": 1, "id":  42}', json),
            "row_to_json((SELECT o FROM (SELECT 42 AS id) AS o))": (b'{"id":42}', json),
            "json_build_object('id', 42)": (b'{"id" : 42}', json),
            """'{"id":  43}'::varchar""": (b'{"id":  43}', json),
            "'null'": (b"null", json),
            r"'\x00ff'::bytea": (b"\x00\xff", "application/octet-stream"),
            "'é'::text, content_type => 'text/plain'": ("é".encode(), "text/plain"),
        }
        for payload in payloads:
            call(f"'order.created', {payload}, destination => 'orders'")
        connection.commit()
        assert [(row.payload, row.content_type) for row in rows.hot()] == [*payloads.values()]
        assert {row.event_type for row in rows.hot()} == {"order.created"}

    @pytest.mark.parametrize("kind", ["text", "json", "jsonb", "bytea"])
    def test_takes_all_by_name(self, call: Any, connection: Connection, rows: Rows, kind: str) -> None:
        given = UUID("0190a5d2-7c4e-7000-8000-000000000001")
        id = call(
            f"event_type => 'order.created', payload => '{{}}'::{kind}, key => 'order:42', destination => 'orders', "
            "headers => '{\"tenant\": \"t1\"}', id => :id, deliver_at => '2030-01-01T00:00Z', "
            "priority => 'high', latest => true, content_type => 'text/plain', "
            "aggregate_type => 'order', aggregate_id => '42'",
            id=given,
        )
        connection.commit()
        row = rows.one(id)
        assert id == given
        assert (row.key, row.headers, row.aggregate_type, row.aggregate_id, row.content_type) == (
            "order:42", {"tenant": "t1"}, "order", "42", "text/plain",
        )  # fmt: skip
        assert (row.priority, row.latest, row.payload) == (1, True, b"{}")
        assert row.locked_until == datetime(2030, 1, 1, tzinfo=UTC)
        assert rows.state(id) == "scheduled"

    def test_refuses_messages_that_can_not_be_delivered(self, call: Any, connection: Connection, rows: Rows) -> None:
        """What the table refuses, `tests/storage/test_write.py` has."""
        for reason, arguments in {
            "destination is missing": "'a', '{}'",
            "priority must be": "'a', '{}', destination => 'orders', priority => 'urgent'",
            "may have 65536": "'a', '{}', destination => 'o', headers => jsonb_build_object('a', repeat('x', 65530))",
            "payload is null": "'a', NULL::jsonb, destination => 'orders'",
            "headers must be a JSON object": "'a', '{}', destination => 'orders', headers => '[]'",
            "is for stored tasks only": "'a', '{}', destination => 'o', headers => '{\"celery-message\": \"{}\"}'",
            "invalid input syntax for type json": "'a', '{oops', destination => 'orders'",
        }.items():
            with pytest.raises(DBAPIError, match=reason):
                call(arguments)
            connection.rollback()
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


class TestOutboxAll:
    """The view for people."""

    def test_shows_any_payload(self, rows: Rows) -> None:
        shown = {
            b'{"id": 42}': '{"id": 42}',
            "naïve 😀".encode(): "naïve 😀",
            b"": "",
            b"\xff\x00": r"\xff00",
            b"NUL \x00": r"\x4e554c2000",
        }
        for payload in shown:
            rows.insert(payload=payload)
        assert [row.payload for row in rows.shown()] == [*shown.values()]
