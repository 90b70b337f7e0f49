"""Single messages that a worker has gathered are delivered once, whatever became of them in the queue."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy import text

from outbox_tasks.model import Bundle, Step
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows
from tests.integration.test_traffic import Destination


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    return new_store(bundle_size=1)


def gathered(bundles: list[Bundle]) -> Bundle:
    """As a worker makes it of what it found in the queue."""
    tickets = tuple(ticket for bundle in bundles for ticket in bundle.tickets)
    return Bundle("orders", str(uuid4()), tickets, leases=tuple(bundle.lease for bundle in bundles))


def claimed(store: Store) -> list[Bundle]:
    bundles: list[Bundle] = []
    claim(store, bundles.extend, lambda: 0)
    assert all(bundle.gather for bundle in bundles)
    return bundles


def test_they_are_sent_with_one_call_and_settled(store: Store, rows: Rows) -> None:
    ids = rows.insert(3)
    destination = Destination()
    verdicts = deliver(store, {"orders": destination}, gathered(claimed(store)))
    assert [verdict.step for verdict in verdicts] == [Step.SENT] * 3
    assert (destination.sent, destination.most) == (ids, 1)
    assert [row.state for row in rows.archived()] == ["sent"] * 3


def test_a_task_that_the_broker_repeats_is_sent_once(store: Store, rows: Rows) -> None:
    [id] = rows.insert()
    destination = Destination()
    bundles = claimed(store)
    deliver(store, {"orders": destination}, gathered(bundles * 2))
    deliver(store, {"orders": destination}, bundles[0])
    assert destination.sent == [id]
    assert [row.state for row in rows.archived()] == ["sent"]


def test_what_is_no_longer_ours_is_left_out(store: Store, rows: Rows) -> None:
    ids = rows.insert(3)
    bundles = claimed(store)
    with rows.engine.begin() as connection:
        table = f"{rows.tables.messages.schema}.outbox_leases"
        stolen = f"UPDATE {table} SET token = gen_random_uuid() WHERE token = '{bundles[1].lease}'"
        connection.execute(text(stolen))
    destination = Destination()
    deliver(store, {"orders": destination}, gathered(bundles))
    assert destination.sent == [ids[0], ids[2]]
    assert [row.state for row in rows.shown()] == ["sent", "leased", "sent"]
