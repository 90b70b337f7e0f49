"""What the relay sees of a feed, in each database that can have one."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest

from outbox_tasks.feeds.source import Source
from tests.feeds.places import Place, ids, made, overlapping, place, run, source

__all__ = ["made", "overlapping", "place", "source"]


class TestLook:
    def test_rows_are_read_as_they_were_written_and_no_more_than_asked_for(self, place: Place, source: Source) -> None:
        writer = place.connect()
        written = [place.write(writer, "kéy 😀", '{"text": "Zoë 😀 %s :x \\\\"}'), place.write(writer)]
        place.write(writer, "kéy 😀")
        writer.commit()
        one, two = source.look(2)
        assert (one.id, one.key, one.message) == (written[0], "kéy 😀", '{"text": "Zoë 😀 %s :x \\\\"}')
        assert (two.id, two.key, two.message) == (written[1], None, "{}")
        assert (one.size, two.size) == (len(one.message.encode()), 2)
        assert two.number > one.number

    def test_only_committed_rows_are_seen_and_whoever_writes_beside_a_look_does_not_wait(
        self, place: Place, source: Source
    ) -> None:
        source.look(10)
        writer = place.connect(wait=1)
        place.write(writer, "k")
        assert source.lag() == (0, 0.0)
        assert source.look(10) == []
        writer.rollback()
        assert source.look(10) == []
        written = [place.write(writer, "k"), place.write(writer, "k")]
        assert source.look(10) == []
        writer.commit()
        assert ids(source) == written

    def test_large_messages_come_a_few_at_a_time_and_of_a_very_large_one_the_beginning(
        self, place: Place, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{type(source).__module__}.MESSAGE_BYTES", 1_000_000)
        monkeypatch.setattr(f"{type(source).__module__}.LOOK_BYTES", 1_500_000)
        writer = place.connect()
        for letter in "abc":
            place.write(writer, message=1_000_001 * letter)
        written = [place.write(writer, message=200_000 * "x") for _ in range(20)]
        writer.commit()
        rows = []
        while found := source.look(100):
            assert len(found) <= 9
            rows += found
            source.delete([(row.number, row.id) for row in found])
        assert [(row.size, row.message) for row in rows[:3]] == [(1_000_001, 100_000 * letter) for letter in "abc"]
        assert [row.id for row in rows[3:]] == written

    def test_a_row_waits_for_an_earlier_open_one_of_its_key_and_for_no_other(
        self, overlapping: Place, source: Source
    ) -> None:
        first, second, third = (overlapping.connect() for _ in range(3))
        early = overlapping.write(second, "a")
        second.commit()
        open_ = overlapping.write(first, "a")
        run(first, "SAVEPOINT s")
        overlapping.write(first, "b")
        behind_a, behind_b, other, free = (overlapping.write(second, key) for key in ("a", "b", "c", None))
        second.commit()
        overlapping.write(third, "a")
        assert ids(source) == [early, other, free]
        third.rollback()
        run(first, "ROLLBACK TO SAVEPOINT s")
        assert ids(source) == [early, behind_b, other, free]
        first.commit()
        assert ids(source) == [early, open_, behind_a, behind_b, other, free]

    def test_a_transaction_with_many_keys_holds_back_all_of_these(self, overlapping: Place, source: Source) -> None:
        first, second = overlapping.connect(), overlapping.connect()
        for n in range(250):
            overlapping.write(first, f"key {n}")
        behind = [overlapping.write(second, f"key {n}") for n in (0, 31, 32, 249)]
        free = overlapping.write(second)
        second.commit()
        assert ids(source, 5) == [free]
        first.rollback()
        assert ids(source, 5) == [*behind, free]


class TestDelete:
    def test_rows_are_deleted_by_number_and_id_and_what_is_gone_is_no_error(self, place: Place, source: Source) -> None:
        writer = place.connect()
        for _ in range(3):
            place.write(writer)
        writer.commit()
        one, two, three = source.look(10)
        for _ in range(2):
            source.delete([(one.number, two.id), (two.number, one.id), (three.number, three.id)])
        source.delete([])
        assert ids(source) == [one.id, two.id]

    @pytest.mark.parametrize("count", [1, 1200])
    def test_it_does_not_wait_for_rows_that_are_open(self, overlapping: Place, count: int) -> None:
        """A server that scanned a small table for them would wait."""
        source = overlapping.source(timeout=20)
        first, second = overlapping.connect(), overlapping.connect()
        overlapping.write(first)
        for _ in range(count):
            overlapping.write(second)
        second.commit()
        overlapping.write(first)
        if overlapping.dialect in ("mysql", "mariadb"):
            run(second, "ANALYZE TABLE outbox_feed")  # it is small, and they know it
        rows = source.look(5000)
        began = time.monotonic()
        source.delete([(row.number, row.id) for row in rows])
        assert (len(rows), time.monotonic() - began < 9) == (count, True)
        assert source.look(10) == []
        first.commit()
        assert len(source.look(10)) == 2


def test_lag_counts_the_rows_and_knows_the_age_of_the_oldest_whatever_its_time_is(place: Place, source: Source) -> None:
    assert source.lag() == (0, 0.0)
    writer = place.connect()
    place.write(writer, "a")
    writer.commit()
    time.sleep(0.3)
    place.write(writer)
    writer.commit()
    count, age = source.lag()
    assert (count, 0.2 <= age < 30) == (2, True)
    moments = {"postgresql": ["infinity", "-infinity"], "sqlite": ["infinity", 1e300, b"\0\xff"]}
    mark = "?" if place.dialect == "sqlite" else "%s"
    if place.dialect in ("mysql", "mariadb"):
        run(writer, "SET sql_mode = ''")
    for moment in moments.get(place.dialect, ["0000-00-00", "9999-12-31"]):
        source.delete([(row.number, row.id) for row in source.look(10)])
        write = f"INSERT INTO outbox_feed (id, created_at, message) VALUES ({mark}, {mark}, '{{}}')"
        run(writer, write, (str(uuid4()), moment))
        writer.commit()
        count, age = source.lag()
        assert (count, 0 <= age <= 1e10) == (1, True)


def test_init_may_run_again_and_says_what_it_ran(place: Place, source: Source) -> None:
    writer = place.connect()
    id = place.write(writer)
    writer.commit()
    assert "CREATE TABLE IF NOT EXISTS outbox_feed" in source.init()
    assert ids(source) == [id]
