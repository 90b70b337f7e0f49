"""The turn and the end of a day, while somebody else writes, reads or dies."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from outbox_tasks.operating import days as days_module
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.integration.archived import drop_days
from tests.storage.conftest import Box

DAY = 2**32


@pytest.fixture
def store(next_settings: Settings) -> Iterator[Store]:
    made = Store.connect(next_settings)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One try a run: those in the way here stay there."""
    monkeypatch.setattr(days_module, "TRIES", 1)


def turn(box: Box) -> None:
    """Midnight. Two days later, it was two days ago."""
    box.connection.execute("UPDATE outbox_days SET date = date - 1")
    box.run("keep/turn.sql", ahead=2)


def age(box: Box) -> None:
    box.connection.execute("UPDATE outbox_days SET ended_at = ended_at - interval '2 hours'")


def settle(box: Box) -> None:
    """All that is ready is sent."""
    box.connection.execute(
        "WITH gone AS (DELETE FROM outbox_ready RETURNING seq) "
        "INSERT INTO outbox_journal (first, state, count, destination, seqs) "
        "SELECT min(seq), 'sent', count(*), 'orders', range_agg(int8range(seq, seq, '[]')) FROM gone GROUP BY seq >> 32"
    )


def test_a_turn_before_there_is_a_next_day_stops_no_writer(box: Box) -> None:
    """Maintenance has not run for days. Numbers move on only once all can see their partition."""
    box.connection.execute("DROP TABLE outbox_messages_1, outbox_journal_1, outbox_messages_2, outbox_journal_2")
    box.connection.execute("UPDATE outbox_days SET date = date - 1")
    with box.transaction() as maintenance:
        box.run("keep/turn.sql", maintenance, ahead=2)
        box.write(1)
        maintenance.rollback()
    box.write(1)
    for _ in range(2):
        box.run("keep/turn.sql", ahead=2)
    box.write(1)
    assert box.rows("SELECT seq FROM outbox_messages ORDER BY 1") == [(1,), (2,), (DAY + 1,)]


def test_a_message_committed_after_the_look_keeps_its_day(box: Box, store: Store) -> None:
    box.run("keep/turn.sql", ahead=2)
    with box.transaction() as writer:
        box.write(1, on=writer)
        turn(box)
        age(box)
        assert drop_days(store, timedelta()).dropped == []
        writer.commit()
    assert box.run("keep/drop.sql", day=0) == [(False,)]
    [kept] = drop_days(store, timedelta()).kept.values()
    assert "1 of its messages are still at work" in kept
    settle(box)
    assert len(drop_days(store, timedelta()).dropped) == 1


def test_a_day_with_an_open_writer_is_not_exported(box: Box, next_settings: Settings, tmp_path: Path) -> None:
    """What it commits could be sent before the drop, and would be in no file."""
    store = Store.connect(next_settings.model_copy(update={"archive_export": f"file://{tmp_path}"}))
    box.run("keep/turn.sql", ahead=2)
    box.write(1)
    settle(box)
    with box.transaction() as writer:
        box.write(1, on=writer)
        turn(box)
        age(box)
        done = drop_days(store, timedelta())
        [kept] = done.kept.values()
        assert "a transaction that wrote messages on that day is still open" in kept
        assert not [*tmp_path.rglob("*")]
        writer.commit()
    settle(box)
    assert len(drop_days(store, timedelta()).dropped) == 1
    [manifest] = tmp_path.rglob("_manifest.json")
    assert '"rows": 2' in manifest.read_text()
    store.close()


def test_a_vacuum_of_ready_does_not_undo_a_turn(box: Box) -> None:
    with box.transaction() as vacuum:
        vacuum.execute("LOCK TABLE outbox_ready IN SHARE UPDATE EXCLUSIVE MODE")
        box.connection.execute("SET statement_timeout = '5s'")
        box.run("keep/turn.sql", ahead=2)
        assert box.value("SELECT to_regclass('outbox_messages_2') IS NOT NULL")


def test_a_dropped_message_is_never_at_work(box: Box, store: Store) -> None:
    """Also if a person drops days by SQL; and wherever it is."""
    box.run("keep/turn.sql", ahead=2)
    turn(box)
    for table, columns, values in (
        ("ready", "size, destination", "1, 'x'"), ("waiting", "due, since, destination", "now(), now(), 'x'"),
        ("held", "since, size, destination, key", "now(), 1, 'x', 'k'"), ("dead", "destination, kin", "'x', 'y'"),
        ("runs", "state, locked_until, attempts, id, destination",
         "'handed over', now(), 1, gen_random_uuid(), 'x'"),
        ("leases", "token, locked_until, destination", "gen_random_uuid(), now(), 'x'"),
    ):  # fmt: skip
        name, number = ("seqs", f"'{{{DAY - 1}}}'") if table == "leases" else ("seq", str(DAY - 1))
        box.connection.execute(f"INSERT INTO outbox_{table} ({name}, {columns}) VALUES ({number}, {values})".encode())
        assert box.run("keep/at_work.sql", first=0, until=DAY, most=9) == [(1,)], table
        assert box.run("keep/drop.sql", day=0) == [(False,)], table
        box.connection.execute(f"DELETE FROM outbox_{table}".encode())
    with box.transaction() as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.ActiveSqlTransaction, match="READ COMMITTED"):
            box.run("keep/drop.sql", other, day=0)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="1 is no day that has ended"):
        box.run("keep/drop.sql", day=1)
    with box.transaction() as reader:  # its empty partitions stay, until a later run
        reader.execute("LOCK TABLE ONLY outbox_messages IN ACCESS SHARE MODE")
        assert box.run("keep/drop.sql", day=0) == [(True,)]
    assert box.value("SELECT gone_at IS NOT NULL FROM outbox_days WHERE number = 0")
    box.run("keep/turn.sql", ahead=2)
    assert box.value("SELECT to_regclass('outbox_messages_0')") is None


def test_what_is_known_of_messages_goes_with_their_day_and_a_slot_after_one(box: Box) -> None:
    box.connection.execute("UPDATE outbox_days SET number = 2")
    box.connection.execute("INSERT INTO outbox_days (number, date, gone_at) VALUES (3, now(), now()), (5, now(), NULL)")
    seqs = [*range(1, 4), *(day * DAY for day in range(1, 6))]
    box.connection.execute("INSERT INTO outbox_trouble (seq) SELECT unnest(%s::bigint[])", [seqs])
    assert [box.run("keep/troubles.sql", most=2) for _ in range(3)] == [[(4,)], [(2,)], [(0,)]]
    assert box.rows("SELECT seq FROM outbox_trouble ORDER BY 1") == [(2 * DAY,), (5 * DAY,)]
    slots = "SELECT 'orders', n, gen_random_uuid(), now() - n * interval '16 hours' FROM generate_series(1, 2) AS n"
    box.connection.execute(f"INSERT INTO outbox_drains (destination, slot, token, until) {slots}".encode())
    box.run("keep/forget.sql", acts=1)
    assert box.rows("SELECT slot FROM outbox_drains") == [(1,)]
