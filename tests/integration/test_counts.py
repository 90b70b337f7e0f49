"""What is counted of messages, what of them is estimated, and the sends of the last hours, as charts show them."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, func, literal, text

from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import overview
from outbox_tasks.operating.overview import STATES, DestinationStatus, archived, courses, destinations
from outbox_tasks.operating.problems import examine
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows, Stream, seconds_from_now
from tests.integration.browsing import Visit
from tests.integration.conftest import Command, Lease
from tests.integration.doctoring import tally

A_LEASE = UUID(int=7)

SHAPES = {
    "pending": {},
    "leased": {"lease": A_LEASE, "locked_until": seconds_from_now(30)},
    "leased, begun": {"lease": A_LEASE, "locked_until": seconds_from_now(30), "begun": True, "attempts": 2},
    "its lease ran out": {"lease": A_LEASE, "last_error_code": "lease_expired"},
    "between two attempts": {"lease": A_LEASE, "locked_until": seconds_from_now(30), "attempts": 1},
    "due again": {"attempts": 3},
    "scheduled": {"locked_until": seconds_from_now(3600)},
    "urgent": {"priority": 1},
    "for some time": {"priority": -1, "locked_until": seconds_from_now(60)},
    "dead": {"status": "dead", "dead_at": seconds_from_now(-5)},
}


def of(store: Store, name: str = "orders", bound: int = 10_000) -> DestinationStatus:
    return destinations(store, bound)[name]


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
def test_counts_have_the_states_of_the_view(store: Store, rows: Rows, key: str | None) -> None:
    for n, shape in enumerate(SHAPES.values(), 1):
        rows.insert(n, key=key, **shape)
    rows.insert(3, destination="mails", key=key)
    shown = Counter((row.destination, row.state) for row in rows.shown())
    for name, status in destinations(store).items():
        assert status.states == {state: shown[name, state] for state in STATES}
        assert not status.estimated
    assert of(store, "mails").due == 3


def test_a_writer_can_name_any_number_of_destinations(store: Store, rows: Rows, visit: Visit, command: Command) -> None:
    """Some of them are looked at, and it is said that there may be more."""
    others = text("'unknown-' || generate_series")
    for state in ({}, {"key": "k"}, {"locked_until": seconds_from_now(60)}, {"status": "dead"}):
        rows.insert(150, destination=others, **state)
    rows.insert(2)
    found = overview.destinations(store)
    assert (len(found), overview.cut(found), found["orders"].due) == (overview.UNKNOWN_SHOWN_AT_MOST + 1, True, 2)
    for code in ("destination_unknown", "dead_letters"):
        problems = [problem for problem in examine(store.settings).problems if problem.code == code]
        assert len(problems) == 11
        assert problems[-1].fact == "The same holds for 90 more destinations."
    assert "and 51 more, with fewer problems and a shorter backlog" in command("status").output
    assert "There may be more destinations that are not configured" in visit().text("/")


def test_destinations_that_are_no_longer_configured_are_counted(store: Store, rows: Rows) -> None:
    later = {"locked_until": seconds_from_now(30)}
    places: dict[str, dict[str, Any]] = {
        "former": {"status": "dead"}, "older": {"key": "k"}, "in hand": {"lease": A_LEASE, **later}, "waits": later,
        "held": {"key": "k", "attempts": 1, **later}, "plain": {}, "runs": {"handed_at": func.now(), **later},
        "alone": {"attempts": 1, "last_error_code": "unsettled"},
    }  # fmt: skip
    for name, place in places.items():
        rows.insert(1, destination=name, **place)
    tally(store, "long gone", sent=1)
    store.claims.take_slot("long gone", 1)
    assert destinations(store).keys() == {"orders", *places}
    assert of(store, "former").states["dead"] == 1


DEAD = {"status": "dead", "dead_at": seconds_from_now(-6000)}
AGAIN = {"created_at": seconds_from_now(-600), "lease": A_LEASE, "locked_until": seconds_from_now(30),
         "last_error_code": "lease_expired"}  # fmt: skip


def due(seconds: float, **columns: Any) -> dict[str, Any]:
    """A message that has been due for so long."""
    return {"locked_until": seconds_from_now(-seconds), **columns}


class TestOldest:
    @pytest.mark.parametrize(
        ("messages", "oldest"),
        [
            ([], None),
            ([due(60), due(600, priority=-1), due(6000, **DEAD)], 600),
            ([due(-60, created_at=seconds_from_now(-6000), attempts=5)], None),
            ([due(-60, attempts=5), due(60, created_at=seconds_from_now(-6000), attempts=5)], 60),
            # As it looks when no worker publishes: claimed again and again.
            ([AGAIN], 600),
            ([{**AGAIN, "deliver_at": seconds_from_now(-300)}], 300),
            ([due(600, attempts=1, last_error_code="unsettled")], 600),  # it goes alone
            ([{**AGAIN, "key": "k"}], 600),
            # Of messages with a key only heads count, and none behind a dead one.
            ([due(60, key="a"), due(600, key="b"), due(-60, key="c"), due(6000, key="c")], 600),
            ([due(0, key="a", **DEAD), due(6000, key="a"), due(60, key="b")], 60),
            ([due(-60, key="c", attempts=1), due(6000, key="c")], None),
            ([{"lease": A_LEASE, "locked_until": seconds_from_now(60), "key": "c"}, due(6000, key="c")], None),
        ],
    )
    def test_has_been_due_for_the_longest_time(
        self, store: Store, rows: Rows, messages: list[dict[str, Any]], oldest: float | None
    ) -> None:
        for columns in messages:
            rows.insert(1, **columns)
        found = of(store)
        assert found.oldest == (None if oldest is None else pytest.approx(oldest, abs=30))
        assert found.held_up == (1 if {"status": "dead", "key": "a"}.items() <= (messages or [{}])[0].items() else 0)

    def test_is_behind_a_dead_one_if_that_does_not_block(
        self, new_store: MakeStore, rows: Rows, stream: Stream
    ) -> None:
        store = new_store(destinations={"orders": {"url": stream.url, "on_dead": "skip"}})
        rows.insert(1, key="a", **DEAD)
        rows.insert(4, **due(600, key="a"))
        store.claims.keep_house()  # frees the key
        assert (of(store).held_up, of(store).oldest) == (0, pytest.approx(600, abs=30))


def test_of_what_waits_or_is_dead_the_first_counts(store: Store, rows: Rows) -> None:
    for seconds in (900, 300, 600):
        for code, key, age in (("away", None, 60), ("busy", None, 60), ("busy", f"{seconds}", 6000)):
            failed = {"attempts": 1, "last_error_code": code, "created_at": seconds_from_now(-age)}
            rows.insert(1, locked_until=seconds_from_now(seconds + 200 * (code == "busy")), key=key, **failed)
            rows.insert(1, event_type=f"{seconds}", **failed, status="dead", dead_at=seconds_from_now(-seconds))
    found = of(store)
    assert (found.put_off, found.dead_for, found.waited, found.due) == pytest.approx((300, 900, 6000, 0), abs=30)
    rows.insert(1, lease=A_LEASE, handed_at=seconds_from_now(-60), attempts=1, locked_until=seconds_from_now(-5))
    assert of(store).due == 1, "a run that is lost is due again"


def test_counts_beyond_the_bound_are_estimated(
    store: Store, rows: Rows, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.operating.overview.PAGES_SAMPLED", 20)
    rows.insert(3000)
    rows.insert(2000, locked_until=seconds_from_now(3600))
    rows.insert(2000, locked_until=seconds_from_now(3600), attempts=1)
    rows.insert(1500, key="k")
    rows.insert(1200, status="dead", dead_at=seconds_from_now(-5))
    rows.insert(7, lease=A_LEASE, locked_until=seconds_from_now(30))
    rows.insert(500, destination="mails")
    connection.execute(text(f"ANALYZE {rows.tables.messages}"))
    connection.commit()
    found = of(store, bound=1000)
    assert found.estimated == {"pending", "scheduled", "retrying", "dead"}
    expected = {"pending": 4500, "scheduled": 2000, "retrying": 2000, "dead": 1200}
    for state, count in expected.items():
        assert count / 4 < found.states[state] < count * 4, state
    assert found.states["leased"] == 7
    few = of(store, "mails", bound=1000)
    assert (few.states["pending"], few.estimated) == (500, set())


def test_the_archive_is_counted_up_to_so_many_rows_of_the_journal(
    store: Store, rows: Rows, connection: Connection, lease: Lease
) -> None:
    assert archived(store) == (0, False)
    for _ in range(30):
        batch = lease(10)
        store.leases.settle(batch.token, "orders", [Verdict(message, Step.SENT) for message in batch.messages])
    assert archived(store) == (300, False)
    connection.execute(text(f"ANALYZE {rows.tables.messages.schema}.outbox_journal"))
    connection.commit()
    assert archived(store, bound=10) == (300, True)


HOUR = 3600


def count(rows: Rows, destination: str, spans_ago: int, **outcomes: int) -> None:
    """Outcomes that were counted in the first minute of a span of an hour."""
    t = rows.tables.tallies
    minute = func.date_trunc("hour", func.now()) - literal(spans_ago) * text("interval '1 hour'")
    with rows.engine.begin() as connection:
        for outcome, number in outcomes.items():
            row = {"minute": minute, "destination": destination, "outcome": outcome, "count": number}
            connection.execute(t.insert().values(**row))


def seen(numbers: list[int]) -> list[int]:
    """Without the spans at both ends in which there was nothing: an hour may begin while a test runs."""
    used = [place for place, number in enumerate(numbers) if number]
    return numbers[used[0] : used[-1] + 1] if used else []


def test_sends_are_counted_by_the_time_they_ended(store: Store, rows: Rows) -> None:
    count(rows, "orders", 24, sent=1000)  # not one of the last 24
    count(rows, "orders", 5, sent=3, handed=4, dead=1, behind=50)
    count(rows, "orders", 2, retry=1, later=2, outage=4)
    count(rows, "orders", 1, sent=9)
    count(rows, "<b>mails</b>", 3, sent=2)
    found = courses(store, HOUR, 24)
    assert found.keys() == {"orders", "<b>mails</b>"}
    assert seen(found["orders"].sent) == [7, 0, 0, 0, 9]
    assert seen(found["orders"].failed) == [1, 0, 0, 7]
    assert len(found["orders"].sent) == len(found["orders"].failed) == 24
    assert found["orders"].sent[-1] == 0  # this hour
    assert courses(store, HOUR, 24, "orders") == {"orders": found["orders"]}
    assert courses(store, HOUR, 24, "nobody") == {}
