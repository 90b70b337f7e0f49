"""Messages that share a key: one after the other, whatever fails, whoever overlaps; and no key waits for another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from outbox_tasks.errors import TransientError
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.relay.store import Store
from tests.claims import drain_batches
from tests.conftest import MakeStore, Rows, seconds_from_now


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    return new_store(backoff_base=100)


class Destination:
    """Answers each event type as it is told, and remembers what it took."""

    def __init__(self, **answers: Outcome) -> None:
        self.answers = answers
        self.sent: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        outcomes = [self.answers.get(message.event_type, Outcome.sent()) for message in messages]
        self.sent += [m.id for m, o in zip(messages, outcomes, strict=True) if o == Outcome.sent()]
        return outcomes

    def close(self) -> None:
        """Nothing is open."""


def drained(store: Store, destination: Destination | None = None) -> list[str]:
    """Drain what is due. Returns what the destination has taken by now."""
    destination = destination or Destination()
    drain_batches(store, dict.fromkeys(store.settings.destinations, destination))
    return destination.sent


def write(connection: Connection, rows: Rows, key: str | None) -> str:
    """Write one message in the connection's transaction."""
    id = str(uuid4())
    row = {"id": id, "event_type": "order.created", "destination": "orders", "content_type": "application/json",
           "text": "{}", "key": key}  # fmt: skip
    call = f"SELECT {rows.tables.messages.schema}.outbox_write(CAST(:row AS json))"
    written = json.dumps([{name: value for name, value in row.items() if value is not None}])
    connection.execute(text(call), {"row": written})
    return id


Two = tuple[Connection, Connection]


@pytest.fixture
def two(engine: Engine) -> Iterator[Two]:
    """Two transactions of the application at the same time."""
    with ExitStack() as stack:
        yield stack.enter_context(engine.connect()), stack.enter_context(engine.connect())


class TestOneKey:
    def test_if_one_exception_holds_for_all_they_are_sent_in_order_later(self, store: Store, rows: Rows) -> None:
        """A publisher that keeps the order itself gets all of a key at once."""

        class KeepsOrder(Destination):
            keeps_order = True

            def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
                raise TransientError("later", code="busy")

        written = rows.insert(3, key="a")
        assert drained(store, KeepsOrder()) == []
        rows.change(written[1:], locked_until=seconds_from_now(-1))  # the waits end in any order
        assert drained(store) == []
        rows.change(locked_until=seconds_from_now(-1))
        assert drained(store) == written

    def test_its_order_counts_and_not_the_priority(self, store: Store, rows: Rows) -> None:
        written = [*rows.insert(key="a", priority=-1), *rows.insert(key="a", priority=1), *rows.insert(key="a")]
        assert drained(store) == written


class TestOverlappingWriters:
    def test_a_savepoint_that_is_rolled_back_is_not_waited_for(self, store: Store, rows: Rows, two: Two) -> None:
        one, other = two
        one.begin()
        savepoint = one.begin_nested()
        write(one, rows, "a")
        savepoint.rollback()
        second = write(other, rows, "a")
        other.commit()
        assert drained(store) == [second]
        third = write(one, rows, "a")
        one.commit()
        assert drained(store) == [third]

    def test_an_exception_block_is_such_a_savepoint(self, store: Store, rows: Rows, two: Two, schema: str) -> None:
        """In functions and triggers: what it undoes is not waited for, what it keeps is."""
        one, other = two
        publish = f"PERFORM {schema}.outbox_publish('a', '{{}}'::text, key => 'a', destination => 'orders')"
        kept, undone = (
            f"BEGIN {publish}; {fails} EXCEPTION WHEN raise_exception THEN NULL; END;" for fails in ("", "RAISE 'no';")
        )
        one.exec_driver_sql(f"DO $$ BEGIN {undone} END $$")
        second = write(other, rows, "a")
        other.commit()
        assert drained(store) == [second]
        one.exec_driver_sql(f"DO $$ BEGIN {kept} {undone} END $$")
        fourth = write(other, rows, "a")
        other.commit()
        assert drained(store) == []
        one.commit()
        [_, last] = drained(store)
        assert last == fourth

    @pytest.mark.parametrize(("keys", "go"), [(40, 0), (32, 1)], ids=["all keys", "its few keys only"])
    def test_a_writer_of_many_messages_holds_up(self, store: Store, rows: Rows, two: Two, keys: int, go: int) -> None:
        """A transaction of many keys has one mark for all of them, and not one each."""
        one, other = two
        for n in range(100):
            write(one, rows, f"key {n % keys}")
        write(other, rows, f"key {keys - 1}")
        free = [write(other, rows, "another")]
        other.commit()
        assert drained(store) == free[:go]
        one.commit()
        assert len(drained(store)) == 102 - go

    def test_writers_of_keys_in_any_order_never_wait_for_each_other(self, rows: Rows, two: Two) -> None:
        one, other = two
        keys = [str(n) for n in range(50)]
        for here, there in zip(keys, reversed(keys), strict=True):
            write(one, rows, here)
            write(other, rows, there)
        one.commit()
        other.commit()
        assert len(rows.hot()) == 100

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_a_prepared_transaction_is_waited_for_too(self, store: Store, rows: Rows, engine: Engine, end: str) -> None:
        with engine.connect() as one:
            if one.exec_driver_sql("SHOW max_prepared_transactions").scalar_one() == "0":
                pytest.skip("this PostgreSQL takes no prepared transactions")
            one.rollback()
            two_phase = one.begin_twophase()
            first = write(one, rows, "a")
            two_phase.prepare()
            second = rows.insert(1, key="a")
            assert drained(store) == []
            getattr(two_phase, end)()
        assert drained(store) == ([first, *second] if end == "commit" else second)


class TestLatest:
    """Of state-like events only the newest matters: what has failed is not tried again once there is a newer one."""

    @pytest.fixture
    def failed(self, store: Store, rows: Rows) -> str:
        [id] = rows.insert(1, key="a", event_type="bad", latest=True)
        assert drained(store, Destination(bad=Outcome.retry("busy", "later"))) == []
        return id

    @pytest.mark.parametrize(
        "other",
        [
            {"key": "b"},
            {"key": "a", "status": "dead"},
            {"key": "a", "locked_until": seconds_from_now(1000)},  # it may be cancelled: then neither would arrive
        ],
        ids=["of another key", "dead", "not due"],
    )
    def test_what_does_not_arrive_now_replaces_nothing(
        self, store: Store, rows: Rows, failed: str, other: dict[str, Any]
    ) -> None:
        rows.insert(1, latest=True, **other)
        drained(store)
        rows.change([failed], locked_until=seconds_from_now(-1))
        assert drained(store) == [failed]
