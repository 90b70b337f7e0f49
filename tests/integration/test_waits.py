"""Why a message is not going out: `show`, the message's page and `keys` say the same."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from outbox_tasks.operating import pauses
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.relay.store import Store
from outbox_tasks.text import moment
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.browsing import Visit
from tests.integration.test_status import beat, env, run  # noqa: F401

CLAIMS = ("no claim has ever run; it is due since ", "start beat and a claim worker; outbox-tasks doctor")


def waits(store: Store, id: str) -> str:
    message = Lookup(store).one(UUID(id))
    assert message is not None
    return str(message["waits"])


def test_its_destination_is_paused_or_its_circuit_is_open(store: Store, rows: Rows) -> None:
    [id] = rows.insert(1)
    pauses.pause(store, "orders", "ada", "moving house")
    assert waits(store, id).startswith("orders is paused by ada since 2")
    assert waits(store, id).endswith(" UTC: moving house. → outbox-tasks resume orders")
    pauses.resume(store, "orders", "ada")
    for _ in range(5):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused by the other side")
    assert waits(store, id).startswith("the circuit of orders is open since 2")
    assert "UTC: connection: refused by the other side. → mend it; one message tries it" in waits(store, id)


def test_its_destination_is_unknown(store: Store, rows: Rows) -> None:
    [id] = rows.insert(1, destination="odrers")
    assert waits(store, id).startswith("no destination 'odrers' is configured here, and it is due since 2")


def test_its_key_is_held_up(store: Store, rows: Rows) -> None:
    [head] = rows.insert(1, key="k", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_422")
    [id] = rows.insert(1, key="k")
    begin = f"1 message of its key is before it, and the first ({head}) is "
    assert waits(store, id).startswith(f"{begin}dead since 2")
    assert waits(store, id).endswith(f" UTC: http_422. → outbox-tasks redrive {head}, or discard")
    rows.change([head], status="pending", dead_at=None, attempts=2, locked_until=seconds_from_now(600))
    assert waits(store, id).startswith(f"{begin}retrying until 2")


def test_it_is_not_due(store: Store, rows: Rows) -> None:
    [later] = rows.insert(1, locked_until=seconds_from_now(600))
    [failed] = rows.insert(1, locked_until=seconds_from_now(600), attempts=2, last_error_code="http_500")
    assert waits(store, later) == f"it is scheduled for {moment(rows.one(later).locked_until)}."
    again = moment(rows.one(failed).locked_until)
    assert waits(store, failed) == f"it failed (http_500), and the next try is due at {again}."


def test_its_destination_takes_no_more_now(new_store: MakeStore, rows: Rows) -> None:
    [id] = rows.insert(1)
    limited = new_store(destinations={"orders": {"url": "a://b", "rate_limit": 5}})
    assert waits(limited, id).startswith("orders gets at most 5 a second; it is due since ")
    narrow = new_store(destinations={"orders": {"url": "a://b", "concurrency": 1}})
    rows.insert(1, lease=uuid4(), begun=True, attempts=1, locked_until=seconds_from_now(600))
    assert waits(narrow, id).startswith("all 1 slot of orders are taken; it is due since ")


def test_nobody_claims_or_sends_it(store: Store, rows: Rows) -> None:
    [id] = rows.insert(1)
    assert waits(store, id).startswith(CLAIMS[0])
    assert waits(store, id).endswith(CLAIMS[1])
    beat(rows, "claim", "claim")
    assert waits(store, id).startswith("no worker consumes outbox.publish; it is due since ")
    beat(rows)
    assert waits(store, id).endswith(", and a claim takes it when those before it are sent.")


@pytest.mark.parametrize("state", [{"lease": uuid4(), "locked_until": seconds_from_now(60)}, {"status": "dead"}])
def test_what_is_on_its_way_or_dead_waits_for_nothing(store: Store, rows: Rows, state: dict[str, Any]) -> None:
    [id] = rows.insert(1, **state, **({"dead_at": seconds_from_now(-1)} if "status" in state else {}))
    assert waits(store, id) == "None"


def test_show_keys_and_the_page_say_the_same(run: Any, visit: Visit, store: Store, rows: Rows) -> None:  # noqa: F811
    [head] = rows.insert(1, key="k", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_422")
    [id] = rows.insert(1, key="k")
    expected = waits(store, id)
    assert expected in " ".join(run("show", id).stdout.split())
    assert json.loads(run("show", "--json", id).stdout)["waits"] == expected
    assert f"It waits because {expected}" in visit().text(f"/messages/{id}")
    dead = f"{head} is dead since {moment(rows.one(head).dead_at)}: http_422. → outbox-tasks redrive {head}, or discard"
    [key] = json.loads(run("keys", "--json").stdout)["blocked"]
    assert key["waits"] == dead
    pauses.pause(store, "orders", "ada", "moving house")
    paused = waits(store, id)
    assert f"All keys of this destination wait, because {paused}" in run("keys").stdout
    assert f"All keys of this destination wait, because {paused}" in visit().text("/keys")
