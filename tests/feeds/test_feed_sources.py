"""What the relay sees of a feed, in each database that can have one."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from uuid import uuid4

import psycopg
import pymysql
import pytest

from outbox_tasks.feeds.source import Source
from tests.feeds.sources import Place, Race, ids, made, overlapping, place, run, source

__all__ = ["made", "overlapping", "place", "source"]


class TestLook:
    def test_a_row_is_read_as_it_was_written(self, place: Place, source: Source) -> None:
        writer = place.connect()
        written = [place.write(writer, "kéy 😀", '{"text": "Zoë 😀 %s :x \\\\"}'), place.write(writer)]
        writer.commit()
        one, two = source.look(10)
        assert (one.id, one.key, one.message) == (written[0], "kéy 😀", '{"text": "Zoë 😀 %s :x \\\\"}')
        assert (two.id, two.key, two.message) == (written[1], None, "{}")
        assert (one.size, two.size) == (len(one.message.encode()), 2)
        assert two.number > one.number

    def test_only_committed_rows_are_seen(self, place: Place, source: Source) -> None:
        writer = place.connect()
        place.write(writer, "k")
        assert source.look(10) == []
        writer.rollback()
        assert source.look(10) == []
        id = place.write(writer, "k")
        writer.commit()
        assert ids(source) == [id]

    def test_no_more_rows_are_read_than_asked_for(self, place: Place, source: Source) -> None:
        writer = place.connect()
        written = [place.write(writer, key) for key in ("a", None, "a", "b")]
        writer.commit()
        assert ids(source, 3) == written[:3]

    def test_large_messages_come_a_few_at_a_time(
        self, place: Place, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = place.connect()
        monkeypatch.setattr(f"{type(source).__module__}.LOOK_BYTES", 10_000)
        written = [place.write(writer, message=1000 * "x") for _ in range(300)]
        writer.commit()
        found = source.look(1000)
        assert [row.id for row in found] == written[: len(found)]
        assert 10 <= len(found) <= 200

    def test_a_row_waits_for_an_earlier_open_one_of_its_key_and_for_no_other(
        self, overlapping: Place, source: Source
    ) -> None:
        first, second = overlapping.connect(), overlapping.connect()
        open_ = overlapping.write(first, "a")
        behind, other, free = (overlapping.write(second, key) for key in ("a", "b", None))
        second.commit()
        assert ids(source) == [other, free]
        first.commit()
        assert ids(source) == [open_, behind, other, free]

    def test_an_open_row_does_not_hold_back_earlier_ones_of_its_key(self, overlapping: Place, source: Source) -> None:
        first, second = overlapping.connect(), overlapping.connect()
        early = overlapping.write(second, "a")
        second.commit()
        overlapping.write(first, "a")
        assert ids(source) == [early]

    def test_a_row_no_longer_waits_for_one_that_was_rolled_back(self, overlapping: Place, source: Source) -> None:
        first, second = overlapping.connect(), overlapping.connect()
        overlapping.write(first, "a")
        run(first, "SAVEPOINT s")
        overlapping.write(first, "b")
        behind_a, behind_b = overlapping.write(second, "a"), overlapping.write(second, "b")
        second.commit()
        assert ids(source) == []
        run(first, "ROLLBACK TO SAVEPOINT s")
        assert ids(source) == [behind_b]
        first.rollback()
        assert ids(source) == [behind_a, behind_b]

    def test_a_transaction_with_many_keys_holds_back_all_of_these(self, overlapping: Place, source: Source) -> None:
        first, second = overlapping.connect(), overlapping.connect()
        for n in range(450):
            overlapping.write(first, f"key {n}")
        behind = [overlapping.write(second, f"key {n}") for n in (0, 31, 32, 449)]
        free = overlapping.write(second)
        second.commit()
        assert ids(source, 5) == [free]
        first.rollback()
        assert ids(source, 5) == [*behind, free]

    def test_whoever_writes_beside_a_look_does_not_wait(self, place: Place, source: Source) -> None:
        source.look(10)
        writer = place.connect(wait=1)
        place.write(writer, "a")
        source.look(10)
        place.write(writer, "a")
        writer.commit()
        assert len(source.look(10)) == 2

    def test_no_time_that_somebody_has_written_stops_it(self, place: Place, source: Source) -> None:
        moments = {
            "postgresql": ["infinity", "-infinity", "4713-01-01 BC", "294276-01-01"],
            "sqlite": ["infinity", 1e300, b"\0\xff", "9e999", -1e308, 5373484, "-4713-11-24"],
        }.get(place.dialect, ["0000-00-00", "0001-01-01", "9999-12-31"])
        writer = place.connect()
        mark = "?" if place.dialect == "sqlite" else "%s"
        if place.dialect in ("mysql", "mariadb"):
            run(writer, "SET sql_mode = ''")
        for moment in moments:
            id = uuid4()
            write = f"INSERT INTO outbox_feed (id, created_at, message) VALUES ({mark}, {mark}, {mark})"
            run(writer, write, (str(id), moment, "{}"))
            writer.commit()
            count, age = source.lag()
            assert (count, 0 <= age <= 1e10) == (1, True)
            [row] = source.look(10)
            assert row.id == str(id)
            source.delete([(row.number, row.id)])

    def test_of_a_very_large_message_it_reads_the_beginning(
        self, place: Place, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{type(source).__module__}.MESSAGE_BYTES", 1_000_000)
        monkeypatch.setattr(f"{type(source).__module__}.LOOK_BYTES", 1_500_000)
        writer = place.connect()
        for letter in "abc":
            place.write(writer, message=1_000_001 * letter)
        last = place.write(writer)
        writer.commit()
        rows = []
        while found := source.look(10):
            assert len(found) <= 2
            rows += found
            source.delete([(row.number, row.id) for row in found])
        assert [(row.size, row.message) for row in rows[:3]] == [(1_000_001, 100_000 * letter) for letter in "abc"]
        assert rows[3].id == last

    def test_no_key_is_longer_than_a_message_may_have(self, place: Place, source: Source) -> None:
        """The database refuses it, or the relay sees that it is too long."""
        writer = place.connect()
        with suppress(psycopg.Error, pymysql.Error, sqlite3.Error):
            place.write(writer, "k" * 50_000_000)
            writer.commit()
        assert all(len(str(row.key)) <= 256 for row in source.look(10))


class TestDelete:
    def test_rows_are_deleted_by_number_and_id(self, place: Place, source: Source) -> None:
        writer = place.connect()
        for _ in range(3):
            place.write(writer)
        writer.commit()
        one, two, three = source.look(10)
        source.delete([(one.number, two.id), (two.number, one.id), (three.number, three.id)])
        assert ids(source) == [one.id, two.id]

    def test_what_is_gone_already_is_no_error(self, place: Place, source: Source) -> None:
        writer = place.connect()
        place.write(writer)
        writer.commit()
        (row,) = source.look(10)
        for _ in range(2):
            source.delete([(row.number, row.id), (row.number + 9, str(uuid4()))])
        source.delete([])
        assert source.look(10) == []

    def test_a_number_that_was_given_again_keeps_its_new_row(self, place: Place, source: Source) -> None:
        writer = place.connect()
        place.write(writer)
        writer.commit()
        (old,) = source.look(10)
        source.delete([(old.number, old.id)])
        place.give_number_again(old.number)
        place.write(writer)
        writer.commit()
        (new,) = source.look(10)
        assert (new.number, new.id != old.id) == (old.number, True)
        source.delete([(old.number, old.id)])
        assert ids(source) == [new.id]

    @pytest.mark.parametrize("count", [1, 4, 1200])
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


def test_lag_counts_the_rows_and_knows_the_age_of_the_oldest(place: Place, source: Source) -> None:
    assert source.lag() == (0, 0.0)
    writer = place.connect()
    place.write(writer, "a")
    writer.commit()
    time.sleep(0.3)
    place.write(writer)
    writer.commit()
    count, age = source.lag()
    assert (count, 0.3 <= age < 30) == (2, True)


def test_init_may_run_again_and_says_what_it_ran(place: Place, source: Source) -> None:
    writer = place.connect()
    id = place.write(writer)
    writer.commit()
    said = source.init()
    assert said == source.ddl()
    assert "CREATE TABLE IF NOT EXISTS outbox_feed" in said
    assert ids(source) == [id]


def test_in_a_race_of_writers_no_row_is_lost_invented_doubled_or_overtakes_its_key(place: Place) -> None:
    race = Race(place, 4000)
    race.run()
    found = race.found
    if place.dialect in ("mysql", "mariadb"):  # which give out a number a moment before the row is there
        del found["inversions by number"]
    assert set(found.values()) == {0}, found
    assert len(race.copied) == len(race.committed) > 3000
    assert race.rolled_back
