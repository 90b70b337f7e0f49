"""The SQL that writes messages, also as a role that can do no more."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox_tasks.database import sql
from outbox_tasks.model import MAX_HEADER_BYTES
from tests.conftest import eventually
from tests.storage.conftest import Box

VERBS = ["publish_one", "publish", "publish_once"]

ID = UUID(int=5)
LEAST: dict[str, Any] = {"event_type": "a", "destination": "orders", "content_type": "x", "payload": b"12345"}
ALL: dict[str, Any] = {
    "event_type": "order.%s created",
    "destination": "orders",
    "payload": b"\x00\xff%(a)s",
    "content_type": "text/x-é:b",
    "headers": {"tenant": "é"},
    "key": "order:42",
    "aggregate_type": "order",
    "aggregate_id": "42",
    "priority": "high",
    "latest": True,
    "deliver_at": "2030-01-02T03:04:05+00:00",
}


def parameters(verb: str, **fields: Any) -> dict[str, Any]:
    """What a verb takes to write one message."""
    row = {**LEAST, "id": str(uuid4()), **fields}
    if verb == "publish_one":
        names = sql.statement("write/publish_one.sql", None).names
        return {**dict.fromkeys(names), **row, "headers": json.dumps(row["headers"]) if "headers" in row else None}
    row["data"] = b64encode(row.pop("payload")).decode()
    return {"row": json.dumps([row])}


def write(box: Box, verb: str = "publish_one", on: psycopg.Connection[Any] | None = None, **fields: Any) -> None:
    box.run(f"write/{verb}.sql", on, **parameters(verb, **fields))


def messages(box: Box) -> list[Any]:
    with psycopg.Cursor(box.connection, row_factory=psycopg.rows.namedtuple_row) as cursor:
        return cursor.execute("SELECT * FROM outbox_messages ORDER BY seq").fetchall()


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_all_that_a_message_has_is_written(box: Box, verb: str) -> None:
    write(box, verb, **ALL, id=str(ID))
    [row] = messages(box)
    assert {name: getattr(row, name) for name in ALL if name not in ("priority", "deliver_at")} == {
        name: value for name, value in ALL.items() if name not in ("priority", "deliver_at")
    }
    assert (row.id, row.priority, row.deliver_at) == (ID, 1, datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert timedelta(0) <= datetime.now(UTC) - row.created_at < timedelta(seconds=30)


class TestPlace:
    """Each message is at work in one table, from its write on."""

    def test_due_now_it_is_ready(self, box: Box, verb: str) -> None:
        write(box, verb, priority="low")
        assert box.where(1) == ["ready"]
        query = "SELECT r.xmin::text = xid::text, since = created_at, size, r.priority, attempts, alone, r.key "
        found = box.rows(f"{query} FROM outbox_ready r JOIN outbox_messages USING (seq)")
        assert found == [(True, True, 5, -1, 0, False, None)]

    def test_due_later_it_waits(self, box: Box, verb: str) -> None:
        write(box, verb, delay=60.0)
        assert box.where(1) == ["waiting"]
        query = "SELECT due = deliver_at, since = due FROM outbox_waiting JOIN outbox_messages USING (seq)"
        assert box.rows(query) == [(True, True)]

    def test_with_a_key_it_is_ready_even_if_it_is_due_later(self, box: Box, verb: str) -> None:
        """A claim looks at it in its turn. It may be behind others of its key, or others behind it."""
        write(box, verb, key="k", delay=60.0)
        assert box.where(1) == ["ready"]
        assert box.rows("SELECT since = deliver_at, key FROM outbox_ready r JOIN outbox_messages USING (seq, key)") == [
            (True, "k")
        ]


OTHER: list[dict[str, Any]] = [
    {"payload": b"y"}, {"event_type": "b"}, {"key": None}, {"headers": {}}, {"aggregate_type": None},
    {"aggregate_id": "6"}, {"content_type": "application/x-other"}, {"destination": "audit"},
]  # fmt: skip


class TestAnIdThatTheApplicationChose:
    @pytest.fixture(params=["today", "earlier"])
    def there(self, request: pytest.FixtureRequest, box: Box) -> Box:
        """A message with this id is there, of today or of a day before."""
        write(box, "publish_once", **ALL, id=str(ID))
        if request.param == "earlier":
            box.rows("SELECT setval('outbox_seq', 4294967296)")
        return box

    def test_again_it_says_the_same(self, there: Box) -> None:
        headers = {**ALL["headers"], "traceparent": "another", "eventid": str(ID)}
        write(there, "publish_once", **{**ALL, "headers": headers, "deliver_at": None, "priority": "low"}, id=str(ID))
        assert [row.id for row in messages(there)] == [ID]
        there.check_books()

    def test_with_other_content_is_refused(self, there: Box) -> None:
        said = f"outbox_publish: id {ID} belongs to a message with other content"
        for other in OTHER:
            with pytest.raises(psycopg.errors.UniqueViolation, match=said):
                write(there, "publish_once", **{**ALL, **other}, id=str(ID))
        assert len(messages(there)) == 1

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_of_two_at_the_same_moment_the_second_waits(self, box: Box, end: str) -> None:
        with other(box) as first, other(box) as later:
            later.autocommit = True
            write(box, "publish_once", first, id=str(ID))
            second = threading.Thread(target=write, args=(box, "publish_once", later), kwargs={"id": str(ID)})
            second.start()
            eventually(lambda: waiting(box))
            getattr(first, end)()
            second.join(10)
        assert [row.id for row in messages(box)] == [ID]

    @pytest.mark.parametrize("level", psycopg.IsolationLevel)
    def test_a_snapshot_that_stays_is_told_what_was_written_since(self, box: Box, level: Any) -> None:
        with other(box) as late:
            late.isolation_level = level
            late.execute("SELECT 1 FROM pg_class LIMIT 1")
            write(box, "publish_once", id=str(ID))
            if level >= psycopg.IsolationLevel.REPEATABLE_READ:
                with pytest.raises(psycopg.errors.SerializationFailure):
                    write(box, "publish_once", late, id=str(ID))
                late.rollback()
            write(box, "publish_once", late, id=str(ID))
            late.commit()
        assert len(messages(box)) == 1


class TestMarks:
    """What a transaction that has written keys shows to claims until its end."""

    def test_each_key_has_one_with_the_last_number_before(self, box: Box) -> None:
        write(box)
        with other(box) as writer:
            for key in ("a", "b", "a"):
                write(box, "publish_one", writer, key=key)
            assert marks(box) == {klass(box, "a"): 1, klass(box, "b"): 1}
        assert marks(box) == {}

    def test_many_messages_of_one_key_have_one_and_many_keys_one_for_all(self, box: Box) -> None:
        with other(box) as writer:
            for _ in range(40):
                write(box, "publish_one", writer, key="a")
            assert marks(box) == {klass(box, "a"): 0}
            for n in range(40):
                write(box, "publish_one", writer, key=f"order:{n}")
            found = marks(box)
            assert len(found) == 33
            assert found[box.value("SELECT outbox_all_keys()")] == 0

    def test_a_savepoint_that_is_rolled_back_takes_its_own(self, box: Box) -> None:
        with other(box) as writer:
            with writer.transaction():
                write(box, "publish_one", writer, key="a")
                assert marks(box) == {klass(box, "a"): 0}
                raise psycopg.Rollback
            assert marks(box) == {}
            write(box, "publish_one", writer, key="a")
            assert marks(box) == {klass(box, "a"): 1}


LONG = "\U0001f4ee"
TOO_MUCH: list[dict[str, Any]] = [
    {"event_type": LONG * 256}, {"event_type": ""}, {"destination": LONG * 256}, {"destination": ""},
    {"aggregate_type": LONG * 1001}, {"aggregate_id": LONG * 1001}, {"content_type": LONG * 1001},
    {"key": LONG * 256}, {"key": ""}, {"headers": {"a": "x" * 66_560}}, {"deliver_at": "infinity"},
]  # fmt: skip


class TestLimits:
    """No call of a writer makes a row, or a lease, that a statement of the relay can't manage."""

    def test_the_table_refuses_what_is_too_much(self, box: Box, verb: str) -> None:
        refusals = psycopg.errors.CheckViolation, psycopg.errors.DataError, psycopg.errors.ProgramLimitExceeded
        for said in TOO_MUCH:
            with pytest.raises(refusals):
                write(box, verb, **said)
        assert messages(box) == []

    def test_the_table_takes_what_python_takes(self, box: Box, verb: str) -> None:
        most = {"aggregate_type": LONG * 1000, "aggregate_id": LONG * 1000, "content_type": LONG * 1000}
        headers = {"a": "x" * (MAX_HEADER_BYTES - 9)}
        if verb != "publish_once":  # the table has room for what a replay adds
            headers["replayed-id"] = str(uuid4())
        write(box, verb, event_type=LONG * 255, key=LONG * 255, headers=headers, **most)
        assert len(messages(box)) == 1

    def test_one_look_takes_back_so_many_leases_and_messages(self, box: Box) -> None:
        box.write(12)
        box.rows("DELETE FROM outbox_ready RETURNING 1")
        lease = "INSERT INTO outbox_leases SELECT gen_random_uuid(), now(), NULL, 'orders', 'a', ARRAY[n, n+1, n+2]"
        box.rows(f"{lease} FROM generate_series(1, 10, 3) AS n RETURNING 1")
        for most, messages, left in ((2, 100, 2), (10, 1, 1), (10, 100, 0)):
            box.run("claim/expire.sql", most=most, messages=messages, since="-infinity")
            assert box.value("SELECT count(*) FROM outbox_leases") == left
        assert box.value("SELECT count(*) FROM outbox_ready") == 12
        box.check_books()


class TestRole:
    """A writer may call three functions, and do nothing else."""

    @pytest.fixture
    def writer(self, box: Box) -> Iterator[psycopg.Connection[Any]]:
        role = f"{box.schema}_writer"
        publish = "outbox_publish(text, bytea, text, text, jsonb, timestamptz, uuid, text, text, text, text, boolean)"
        for statement in (
            f"CREATE ROLE {role}",
            f"CREATE SCHEMA {role} AUTHORIZATION {role}",
            f"GRANT USAGE ON SCHEMA {box.schema} TO {role}",
            f"GRANT EXECUTE ON FUNCTION outbox_write, outbox_write_one, {publish} TO {role}",
        ):
            box.connection.execute(statement.encode())
        with other(box) as made:
            made.autocommit = True
            made.execute(f"SET ROLE {role}")
            yield made
        box.connection.execute(f"DROP SCHEMA {role} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")

    def test_writes_in_every_way(self, box: Box, writer: psycopg.Connection[Any]) -> None:
        for verb in VERBS:
            for fields in ({}, {"key": "k"}, {"delay": 60.0}):
                if verb != "publish_one" or "delay" not in fields:
                    write(box, verb, writer, **fields)
        for payload in ("'{}'::text", "'{}'::jsonb", r"'\x00'::bytea"):
            writer.execute(f"SELECT outbox_publish('a', {payload}, destination => 'orders')")  # type: ignore[arg-type]
        assert len(messages(box)) == 11
        box.check_books()

    def test_slips_in_nothing_of_its_own(self, box: Box, writer: psycopg.Connection[Any], verb: str) -> None:
        """What runs with the owner's rights finds no table or function of its caller."""
        for table in ("outbox_messages", "outbox_ready", "outbox_inbox"):
            writer.execute(f"CREATE TEMPORARY TABLE {table} (nothing integer)".encode())
        hijack = "AS $$ BEGIN RAISE 'hijacked'; END $$ LANGUAGE plpgsql"
        # In PostgreSQL before 15 everybody could make functions in the schema public.
        box.connection.execute(f"GRANT CREATE ON SCHEMA {box.schema} TO {box.schema}_writer".encode())
        for function in ("octet_length(bytea) RETURNS integer", "nextval(regclass) RETURNS bigint"):
            for place in (f"{box.schema}_writer", box.schema):
                writer.execute(f"CREATE FUNCTION {place}.{function} {hijack}")  # type: ignore[arg-type]
        writer.execute(f"SET search_path = pg_temp, {box.schema}_writer, pg_catalog")  # type: ignore[arg-type]
        write(box, verb, writer, key="k")
        assert box.where(1) == ["ready"]


def other(box: Box) -> psycopg.Connection[Any]:
    """Another connection, in a transaction once it executes something."""
    return psycopg.connect(box.url, options=f"-c search_path={box.schema}")


def waiting(box: Box) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    return bool(box.value(query, f"%{box.schema}%.outbox_publish%"))


def klass(box: Box, key: str) -> int:
    return int(box.value("SELECT outbox_key_class('orders', %s)", key))


def marks(box: Box) -> dict[int, int]:
    """The floor of each class of keys, as a claim reads them; of all outboxes with a transaction of ours."""
    query = """SELECT classid::bigint >> 8, ((classid::bigint & 255) << 32) | objid::bigint FROM pg_locks
               WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock'"""
    return dict(box.rows(query))
