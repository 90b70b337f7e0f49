"""A destination is away for long: no message dies, no attempt is spent, and other destinations are not held up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.relay.store import Store
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import UNHURRIED, drained

OUTAGE = 8.0
"""Seconds; with waits of a second at most, that is as many attempts as half an hour has with waits of minutes."""


PAUSE = 0.2
"""Seconds between two transactions of the application meanwhile."""


@pytest.fixture
def away() -> Iterator[EmbeddedValkey]:
    """The server of a destination that dies."""
    with EmbeddedValkey() as server:
        yield server


@pytest.fixture
def values(values: dict[str, Any], stream: Stream, away: EmbeddedValkey) -> dict[str, Any]:
    lost = {"url": away.url.replace("://", "+stream://") + "/lost", "max_attempts": 3}
    return {
        **values, **UNHURRIED, "destinations": {"orders": {"url": stream.url}, "lost": lost},
        "breaker_pause": 0.2, "breaker_failures": 3,
    }  # fmt: skip


def test_a_long_outage_spends_no_attempts_and_holds_up_no_others(
    relay: Relay, rows: Rows, stream: Stream, away: EmbeddedValkey
) -> None:
    relay.publish()
    relay.publish(2)
    relay.claim()
    relay.beat()
    relay.ready()
    before = rows.insert(50, destination="lost")
    drained(rows)
    away.kill()
    lost = rows.insert(500, destination="lost")
    store = Store.connect(relay.settings)
    eventually(lambda: [row.state for row in store.traffic.states()] in (["open"], ["trying"]))
    ends = time.monotonic() + OUTAGE
    others: list[str] = []
    while time.monotonic() < ends:  # life goes on
        others += rows.insert(20)
        count = len(others)
        eventually(lambda count=count: len(stream) >= count)
        time.sleep(PAUSE)
    eventually(lambda: {row.destination for row in rows.hot()} == {"lost"})  # the others are settled by now
    hot = rows.hot()
    assert {(row.status, row.attempts - row.spared - row.begun) for row in hot} == {("pending", 0)}

    away.start()
    drained(rows)
    archived = [row for row in rows.archived() if row.destination == "lost"]
    assert {row.state for row in archived} == {"sent"}
    assert len(archived) == len(before) + len(lost)
    assert check_lost(away) == set(lost)  # the server came back empty
    assert sorted(stream.ids()) == sorted(others)
    assert [row.state for row in store.traffic.states()] == ["closed"]
    store.close()


def check_lost(server: EmbeddedValkey) -> set[str]:
    return set(Stream(server.url, "lost").ids())
