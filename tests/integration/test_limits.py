"""Limits of a destination that a person sets while the relay runs: rate, concurrency, and how many travel singly."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text

from outbox_tasks.errors import ActRefused
from outbox_tasks.model import LeasedMessage, Outcome, Step
from outbox_tasks.operating import limits
from outbox_tasks.relay.drain import drain_in_slot
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from tests.claims import claimed, take
from tests.conftest import MakeStore, Rows, eventually
from tests.integration.conftest import Command
from tests.integration.test_traffic import Destination, taken

WHY = "black friday"


def limit(store: Store, seconds: float | None = None, who: str = "anna", **wanted: float | str) -> None:
    """Set limits of `orders`."""
    limits.limit(store, "orders", wanted, who, WHY, seconds)


def shown(store: Store) -> dict[str, str]:
    return {one.setting: str(one) for one in limits.in_force(store, "orders")}


def counts_soon(store: Store, setting: str, value: float | str | None) -> None:
    """This process knows of it in a moment."""
    eventually(lambda: getattr(store.limits.of("orders"), setting) == value, 5)


def test_what_a_person_has_set_counts_until_its_end_by_the_databases_clock(new_store: MakeStore, rows: Rows) -> None:
    store = new_store(singles=7, destinations={"orders": {"url": "a://b", "rate_limit": 50}})
    assert shown(store) == {
        "rate_limit": "50 a second, its own setting",
        "concurrency": "none, the default",
        "singles": "7, the general setting",
    }
    limit(store, 2 * 3600, rate_limit=2, singles="all")
    counts_soon(store, "rate_limit", 2)
    counts_soon(store, "singles", "all")
    assert shown(store)["rate_limit"].startswith("2 a second, by anna until 2")
    assert shown(store)["rate_limit"].endswith(f" UTC: {WHY}")
    assert shown(store)["singles"].startswith("all, by anna until 2")
    with rows.engine.begin() as connection:
        schema = store.settings.database_schema
        connection.execute(text(f"UPDATE {schema}.outbox_limits SET until = now()"))
    counts_soon(store, "rate_limit", 50)
    counts_soon(store, "singles", 7)
    assert shown(store)["rate_limit"] == "50 a second, its own setting"
    limit(store, concurrency=3)
    assert shown(store)["concurrency"] == f"3 at once, by anna until somebody clears it: {WHY}"
    assert shown(store)["singles"] == "0, because it has a concurrency"
    assert limits.clear(store, "orders", "bob") == ["concurrency"]
    counts_soon(store, "concurrency", None)


def test_while_they_cant_be_read_the_settings_count(new_store: MakeStore, rows: Rows) -> None:
    store = new_store(statement_timeout=0.1)
    limit(store, rate_limit=2)
    counts_soon(store, "rate_limit", 2)
    with rows.engine.begin() as connection:
        connection.execute(text(f"LOCK TABLE {store.settings.database_schema}.outbox_limits"))
        counts_soon(store, "rate_limit", None)
    counts_soon(store, "rate_limit", 2)


def test_a_limit_that_no_setting_could_have_is_refused(store: Store) -> None:
    refused: list[tuple[dict[str, Any], float | None, str]] = [
        ({}, None, "say which limit"),
        ({"rate_limit": 0}, None, "rate_limit can't be 0: Input should be greater than or equal to 0.0001"),
        ({"singles": "some"}, None, "singles can't be 'some': it must be a number from 0 to 200, or \"all\""),
        ({"singles": 7}, 0, "seconds can't be 0"),
    ]
    for wanted, seconds, rule in refused:
        with pytest.raises(ActRefused, match=re.escape(rule)):
            limit(store, seconds, **wanted)
    assert not store.ask("traffic/limits.sql")


class Failing(Destination):
    def publish(self, messages: object) -> list[Outcome]:
        return [Outcome.retry("busy", "later")]


@pytest.mark.parametrize("setting", ["rate_limit", "concurrency"])
def test_a_single_that_fails_waits_in_the_table_if_only_a_claim_may_count_it(
    store: Store, rows: Rows, setting: str
) -> None:
    """Celery's own retry would be sent beside the limit."""
    rows.insert(2)
    first, second = take(store, {"orders": 2})

    def step(token: str) -> Step:
        published = publish(store, {"orders": Failing()}, "orders", token, Listener(), by_celery=True)
        assert published
        return published.verdict.step

    assert step(first.token) is Step.RETRY
    wanted = json.dumps([{"setting": setting, "value": 2}])
    store.ask("audit/limit.sql", destination="orders", wanted=wanted, seconds=None, person="anna", reason=WHY)
    counts_soon(store, setting, 2)
    assert step(second.token) is Step.LATER


def test_singles_in_the_queue_go_back_and_no_more_are_taken_than_the_rate_allows(store: Store, rows: Rows) -> None:
    """But they stay there if only their number is limited."""
    rows.insert(50)
    first, second, *others = claimed(store)[0]
    assert len(others) == 48
    limit(store, singles=0)
    assert store.leases.begin(first.token, "orders") is not None
    limits.clear(store, "orders", "anna")
    limit(store, rate_limit=2)
    counts_soon(store, "rate_limit", 2)
    assert store.leases.begin(second.token, "orders") is None
    eventually(lambda: taken(store))
    assert sum(taken(store).values()) <= 2


def test_a_lower_concurrency_ends_the_drains_that_are_too_many(store: Store, rows: Rows) -> None:
    class Lowering(Destination):
        def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
            limit(store, concurrency=1)
            counts_soon(store, "concurrency", 1)
            return super().publish(messages)

    rows.insert(1_000)
    slot = max(store.claims.reserve_slots({"orders": (2, 2)}), key=lambda slot: slot.number)
    drained = drain_in_slot(store, {"orders": Lowering()}, slot, Listener())
    assert 0 < drained.steps[Step.SENT] < 1_000


def test_the_command_shows_sets_and_clears_limits(command: Command) -> None:
    assert "rate_limit: none, the default\n" in command("limit", "orders").stdout
    done = command("limit", "orders", "--rate", "20", "--singles", "all", "--for", "2h", "--why", WHY, "--who", "anna")
    assert (done.exit_code, done.stdout.splitlines()[0][:38]) == (0, "rate_limit: 20 a second, by anna until")
    done = command("limit", "orders", "--rate", "5", "--why", "calmer", "--who", "bob")
    assert done.stdout.startswith("rate_limit: 5 a second, by bob until somebody clears it: calmer\n")
    told = json.loads(command("limit", "orders", "--json").stdout)
    assert (told["rate_limit"]["value"], told["rate_limit"]["change"]["who"]) == (5, "bob")
    assert (told["singles"]["value"], told["concurrency"]["change"]) == ("all", None)
    audit = command("audit").stdout
    assert "limit orders" in audit
    assert "set rate_limit 20, singles all, ends 2" in audit
    assert command("limit", "orders", "--clear").stdout.startswith("Cleared: rate_limit, singles.\n")
    assert command("limit", "orders", "--clear").stdout.startswith("Cleared: nothing, nobody had set a limit.\n")
    refused = command("limit", "orders", "--rate", "5")
    assert (refused.exit_code, "say why" in refused.output) == (2, True), refused.output
