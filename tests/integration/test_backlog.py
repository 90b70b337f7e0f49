"""What an autoscaler asks: how many messages publish workers could send now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from sqlalchemy import Engine, insert, text

from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.conftest import Rows, seconds_from_now

KEDA = Path(__file__).parents[2] / "examples" / "kubernetes" / "keda.yaml"

LATER = seconds_from_now(3600)

Ask = Callable[..., int]


@pytest.fixture
def backlog(store: Store, engine: Engine, schema: str) -> Ask:
    def ask(arguments: str = "") -> int:
        with engine.connect() as connection:
            return int(connection.scalar(text(f"SELECT {schema}.outbox_backlog({arguments})")) or 0)

    return ask


def test_counts_what_is_due_or_in_a_worker_s_hands_but_not_what_is_later_or_dead(
    backlog: Ask, rows: Rows, engine: Engine, schema: str
) -> None:
    in_hand = {"lease": UUID(int=1), "locked_until": LATER}
    alone = {"attempts": 1, "last_error_code": "unsettled"}
    for columns in ({}, {"priority": -1}, {"key": "order:1"}, {"attempts": 3}, alone, in_hand):
        rows.clear()
        for key in (None, "k"):
            rows.insert(3, key=key, locked_until=LATER)
            rows.insert(3, key=key, status="dead", dead_at=seconds_from_now(-1))
        assert backlog() == backlog("'orders'") == 0
        rows.insert(3, **columns)
        rows.insert(2, destination="audit")
        assert (backlog(), backlog("'orders'"), backlog("'audit'"), backlog("'mails'")) == (5, 3, 2, 0), columns
    rows.clear()
    with engine.begin() as connection:
        connection.execute(
            text(f"SELECT {schema}.outbox_publish('a', '{{}}', 'k', 'orders', deliver_at => '2099-01-01')")
        )
    assert backlog() == 0


def test_leaves_out_what_is_behind_another_message_of_its_key(backlog: Ask, rows: Rows, store: Store) -> None:
    rows.insert(1, key="order:1", status="dead", dead_at=seconds_from_now(-1))
    rows.insert(5, key="order:1")
    rows.insert(1, key="order:2")
    assert len(take(store, {"orders": 10})) == 1  # a take puts the five behind the dead one
    assert backlog() == 1


def test_counts_none_of_a_paused_destination_and_one_of_those_out_of_reach(backlog: Ask, rows: Rows) -> None:
    """More workers could not send them. One tries whether the destination answers, so there must be a worker."""
    for destination in ("paused", "away", "orders"):
        rows.insert(4, destination=destination)
    opened = {"opened_at": seconds_from_now(-5), "pause_until": LATER}
    with rows.engine.begin() as connection:
        for name, state in (("paused", {"paused_at": seconds_from_now(-5)}), ("away", opened), ("idle", opened)):
            connection.execute(insert(rows.tables.destinations).values(name=name, **state))
    assert [backlog(f"'{name}'") for name in ("paused", "away", "idle", "orders")] == [0, 1, 0, 4]
    assert backlog() == 5


def test_counts_each_destination_up_to_a_limit(backlog: Ask, rows: Rows) -> None:
    rows.insert(30)
    rows.insert(20, lease=UUID(int=1), locked_until=LATER)
    rows.insert(30, destination="audit")
    rows.insert(3, destination="mails")
    assert backlog("most => 25") == 25 + 25 + 3
    assert backlog("'orders', 40") == 40
    assert backlog("most => NULL") == 83


def test_answers_the_question_of_the_example_for_keda(store: Store, rows: Rows, engine: Engine, schema: str) -> None:
    rows.insert(3)
    _, scaled = yaml.safe_load_all(KEDA.read_text())
    with engine.connect() as connection:
        connection.execute(text(f"SET search_path = {schema}"))
        assert connection.scalar(text(scaled["spec"]["triggers"][0]["metadata"]["query"])) == 3
