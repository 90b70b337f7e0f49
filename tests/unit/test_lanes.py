"""Where a claimer goes on reading."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from outbox_tasks.relay.store import lanes
from outbox_tasks.relay.store.lanes import END, LONG_AGO, Lane, Lanes, Place, Places, Progress, Snapshot

SHARES = {"orders": 10}
FROM_FRONT_SECONDS = {("0", 0)}


def places(claimer: Lanes) -> set[tuple[str, int]]:
    return {(span["xid"], span["seq"]) for span in claimer.spans("orders")}


def read(claimer: Lanes, life: str = "one") -> None:
    claimer.note(SHARES, [("orders", 0, 7, 1)], Snapshot(9, frozenset()), life, ends=SHARES)


def test_a_claimer_goes_on_where_it_was() -> None:
    claimer = Lanes()
    assert places(claimer) == FROM_FRONT_SECONDS
    read(claimer)
    assert places(claimer) == {("8", END)}


def test_what_was_open_is_looked_at_once_it_is_over() -> None:
    lane = Lane()
    lane.note([(3, 1)], Snapshot(9, frozenset({2, 5})), ended=False)
    assert (lane.xid, lane.seq, lane.late) == (3, 1, {2})
    lane.note([], Snapshot(9, frozenset({5})), ended=False)  # others have locked what there is
    assert (lane.xid, lane.seq, lane.late) == (3, 1, {2})
    lane.note([(2, 8)], Snapshot(9, frozenset({5})), ended=False)  # what was late, and perhaps not all of it
    assert (lane.xid, lane.seq, lane.late) == (3, 1, {2})
    lane.note([(7, 5)], Snapshot(9, frozenset({2, 5})), ended=False)
    assert (lane.xid, lane.seq, lane.late) == (7, 5, {2, 5})
    lane.note([], Snapshot(9, frozenset({5})), ended=True)
    assert (lane.xid, lane.seq, lane.late) == (8, END, {5})


def test_after_a_crash_of_the_server_it_reads_from_the_front() -> None:
    claimer = Lanes()
    for life in ("one", "other"):
        places(claimer)
        read(claimer, life)
    assert places(claimer) == FROM_FRONT_SECONDS
    place = Place(start=7, free_since=datetime.now(UTC), life="one")
    place.go_on(3, "other")
    assert (place.start, place.free_since) == (3, LONG_AGO)


def test_a_minute_that_ends_during_a_claim_does_not_skip_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "FROM_FRONT_SECONDS", 0.05)
    claimer, of_keys = Lanes(), Places()
    places(claimer)
    of_keys.of("orders")
    time.sleep(0.06)
    read(claimer)
    assert (places(claimer), of_keys.known()) == (FROM_FRONT_SECONDS, [])


def test_after_a_take_that_failed_all_is_read_from_the_front() -> None:
    progress = Progress()
    places(progress.lanes)
    read(progress.lanes)
    progress.places.of("orders").start = 7
    with pytest.raises(OSError, match="gone"), progress.or_anew():
        raise OSError("gone")
    assert (places(progress.lanes), progress.places.of("orders").start) == (FROM_FRONT_SECONDS, 0)
