"""Messages too large to be sent, which anybody can write in SQL: they end as dead letters, and hold up no others."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import func, literal, text

from outbox_tasks.errors import DatabaseTooSlow
from outbox_tasks.model import Step
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.settle import Listener
from outbox_tasks.settings.destination import Destination
from tests.claims import begin, drain_batches, take, take_batch
from tests.conftest import MakeStore, Rows, Stream

MAX_BYTES: int = Destination.model_fields["max_bytes"].default
MOST = 256 << 20
HASTY: dict[str, Any] = {"queue_lease": 3, "send_timeout": 0.5, "statement_timeout": 0.5, "backoff_base": 0.01}


def of_size(size: int) -> Any:
    return func.convert_to(func.repeat(literal("x"), size), literal("UTF8"))


def drained(new_store: MakeStore, **values: Any) -> Counter[Step]:
    store = new_store(**values)
    with closing(Publishers(store.settings)) as publishers:
        return drain_batches(store, publishers)


@pytest.fixture
def endless(rows: Rows, schema: str) -> None:
    """The database does not return a message of more than 5 MB in time, however much time it has."""
    never_returned(rows, schema, larger_than=5_000_000)


def never_returned(rows: Rows, schema: str, larger_than: int = -1, seconds: float = 60) -> None:
    slowly = f"""
        ALTER FUNCTION {schema}.outbox_leased_messages RENAME TO quickly;
        CREATE FUNCTION {schema}.outbox_leased_messages(taken bigint[], largest integer)
        RETURNS SETOF record LANGUAGE plpgsql AS $$ BEGIN
          PERFORM pg_sleep({seconds}) FROM {schema}.outbox_messages m WHERE m.seq = ANY (taken)
            AND octet_length(m.payload) > {larger_than} AND ({larger_than} < 0 OR octet_length(m.payload) <= largest);
          RETURN QUERY SELECT * FROM {schema}.quickly(taken, largest);
        END $$"""
    with rows.engine.begin() as connection:
        columns = connection.scalar(text(f"SELECT pg_get_function_result('{schema}.outbox_leased_messages'::regproc)"))
        connection.execute(text(slowly.replace("SETOF record", str(columns))))


@pytest.mark.parametrize(
    ("key", "size", "limit"),
    [(None, 101, 100), ("customer:1", 101, 100), (None, 80_000_000, MAX_BYTES)],
)
def test_a_drain_makes_it_dead_and_sends_the_others(
    new_store: MakeStore, rows: Rows, stream: Stream, key: str | None, size: int, limit: int
) -> None:
    orders = {"url": stream.url, "max_bytes": limit, "on_dead": "skip"}
    fits = rows.insert(10, key=key, payload=of_size(100))
    [large] = rows.insert(key=key, payload=of_size(size))
    fits += rows.insert(10, key=key)
    done = drained(new_store, statement_timeout=1, destinations={"orders": orders})
    assert (done[Step.SENT], done[Step.DEAD]) == (20, 1)
    assert sorted(stream.ids()) == sorted(fits)
    row = rows.one(large)
    assert (row.status, row.attempts, row.last_error_code, row.lease) == ("dead", 0, "too_large", None)
    assert row.last_error == f"its payload has {size} bytes, and the destination takes {limit}: see max_bytes"
    assert row.history[-1]["code"] == "too_large"


def test_a_drain_goes_on_where_a_large_message_can_not_be_read(
    new_store: MakeStore, rows: Rows, stream: Stream, endless: None
) -> None:
    orders = {"url": stream.url, "max_bytes": MOST, "max_attempts": 2}
    fits = rows.insert(10)
    [large] = rows.insert(payload=of_size(6_000_000))
    fits += rows.insert(10)
    for _ in range(2):
        drained(new_store, destinations={"orders": orders}, **HASTY)
        rows.change([large], locked_until=func.now())
    assert sorted(stream.ids()) == sorted(fits)
    row = rows.one(large)
    assert (row.status, row.attempts, row.last_error_code) == ("dead", 2, "too_large")
    assert row.last_error == "its payload has 6000000 bytes, and the database did not return them in time"


def test_a_single_that_can_not_be_read_counts_its_attempts(new_store: MakeStore, rows: Rows, endless: None) -> None:
    store = new_store(destinations={"orders": {"url": "a://b", "max_bytes": MOST, "max_attempts": 2}}, **HASTY)
    [large] = rows.insert(payload=of_size(6_000_000))
    for n in range(2):
        rows.change([large], locked_until=func.now())
        [single] = take(store, {"orders": 1})
        publish(store, {}, "orders", single.token, Listener())
        assert rows.one(large).attempts == n + 1
    row = rows.one(large)
    assert (row.status, row.attempts, row.last_error_code, row.begun) == ("dead", 2, "too_large", False)


def test_a_single_that_takes_long_to_read_gets_more_time_and_so_does_a_drain(
    new_store: MakeStore, rows: Rows, schema: str
) -> None:
    store = new_store(**HASTY)
    rows.insert(2)
    [single] = take(store, {"orders": 1})
    never_returned(rows, schema, seconds=0.7)
    for message in (begin(store, single), *take_batch(store).messages):
        assert message is not None
        assert not message.unread
    assert {row.begun for row in rows.hot()} == {True}


def test_a_database_that_is_slow_kills_no_small_message(new_store: MakeStore, rows: Rows, schema: str) -> None:
    store = new_store(**HASTY)
    [id] = rows.insert()
    never_returned(rows, schema)
    with closing(Publishers(store.settings)) as publishers, pytest.raises(DatabaseTooSlow):
        drain_batches(store, publishers)
    row = rows.one(id)
    assert (row.status, row.attempts, row.last_error_code, row.lease is None) == ("pending", 0, None, True)
