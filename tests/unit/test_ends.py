"""From where on a claim looks for leases that have ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outbox_tasks.relay.store.ends import LATELY, LONG_AGO, LOOKS_BACK_EVERY, OPEN, Ends

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def look(ends: Ends, seconds: float, *, found_all: bool = True) -> None:
    ends.looked(ends.since(), NOW + seconds * SECOND, found_all=found_all)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [1000.0]
    monkeypatch.setattr("outbox_tasks.relay.store.ends.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture
def ends(clock: list[float]) -> Ends:
    """After a first look, which found all."""
    made = Ends(statement_timeout=3)
    look(made, 0)
    return made


def test_the_next_look_goes_back_a_little(ends: Ends) -> None:
    assert ends.since() == NOW - LATELY


def test_now_and_then_it_goes_back_for_as_long_as_a_transaction_may_be_open(ends: Ends, clock: list[float]) -> None:
    clock[0] += LOOKS_BACK_EVERY
    assert ends.since() == ends.none_before == NOW - (OPEN + 3) * SECOND
    look(ends, 5)
    assert ends.none_before == NOW - (OPEN - 2) * SECOND


def test_a_look_that_goes_back_a_little_proves_nothing_about_what_was_before(ends: Ends) -> None:
    before = ends.none_before
    look(ends, 1)
    assert ends.none_before == before


def test_after_a_look_that_did_not_find_all_the_next_one_begins_where_it_did(ends: Ends) -> None:
    since = ends.since()
    look(ends, 1, found_all=False)
    assert ends.since() == since


def test_if_the_clock_of_the_server_is_set_back_all_is_looked_at_again(ends: Ends) -> None:
    look(ends, -3600)
    assert ends.none_before == LONG_AGO
    assert ends.since() == LONG_AGO
