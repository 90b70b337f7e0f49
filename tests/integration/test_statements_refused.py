"""A statement about a lease is undone by the server: a deadlock, a standby, the time limit, a full disk, an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import LeasedMessage, Outcome, Step
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from tests.claims import take, take_batch
from tests.conftest import Rows

Refuse = Callable[[str, str, int], None]

STATES = pytest.mark.parametrize("state", ["40P01", "25006", "57014", "53100", "57P01"])


class Destination:
    """Takes everything."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        self.sent += [message.id for message in messages]
        return [Outcome.sent()] * len(messages)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def refuse(rows: Rows, schema: str) -> Refuse:
    """Have the first statements that do this to a lease refused."""

    def refuse(act: str, state: str, count: int) -> None:
        for statement in (
            f"CREATE SEQUENCE {schema}.tries",
            f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('{schema}.tries') <= {count} THEN RAISE SQLSTATE '{state}'; END IF; "
            "RETURN coalesce(new, old); END $$",
            f"CREATE TRIGGER refuse BEFORE {act} ON {schema}.outbox_leases "
            f"FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()",
        ):
            with rows.engine.begin() as connection:
                connection.exec_driver_sql(statement)

    return refuse


def until_it_works(call: Callable[[], object]) -> None:
    """Make the call again and again."""
    for _ in range(5):
        try:
            call()
        except DatabaseUnavailable:
            continue
        return
    raise AssertionError("it never worked")


@STATES
def test_a_take_has_taken_nothing(store: Store, rows: Rows, refuse: Refuse, state: str) -> None:
    rows.insert(3)
    before = rows.hot()
    refuse("INSERT", state, 3)  # what is too slow is tried three times
    with pytest.raises(DatabaseUnavailable):
        take_batch(store)
    assert rows.hot() == before
    until_it_works(lambda: take_batch(store))
    assert {row.begun for row in rows.hot()} == {True}


@STATES
def test_a_send_does_not_begin_and_may_later(store: Store, rows: Rows, refuse: Refuse, state: str) -> None:
    [id] = rows.insert()
    [single] = take(store, {"orders": 1})
    destination = Destination()
    refuse("UPDATE", state, 3)
    with pytest.raises(DatabaseUnavailable):
        publish(store, {"orders": destination}, "orders", single.token, Listener())
    assert (destination.sent, rows.one(id).begun) == ([], False)
    until_it_works(lambda: publish(store, {"orders": destination}, "orders", single.token, Listener()))
    assert destination.sent == [id]
    assert [row.attempts for row in rows.archived()] == [1]


@STATES
def test_what_was_sent_is_settled_and_not_sent_again(store: Store, rows: Rows, refuse: Refuse, state: str) -> None:
    ids = rows.insert(3)
    refuse("DELETE", state, 2)
    destination = Destination()
    assert drain(store, {"orders": destination}, "orders", Listener()).steps == {Step.SENT: 3}
    assert sorted(destination.sent) == sorted(ids)
    assert [(row.attempts, row.last_error_code) for row in rows.archived()] == [(1, None)] * 3
