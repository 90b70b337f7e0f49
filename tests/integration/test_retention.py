"""Old days leave the archive: all of them, nothing else, and in nobody's way."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, text

from outbox_tasks.database.engine import engine_url
from outbox_tasks.errors import MaintainedElsewhere
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import days as days_module
from outbox_tasks.operating import retention
from outbox_tasks.operating.retention import Maintained, maintain
from outbox_tasks.relay.store import Store
from tests.conftest import MakeSettings, MakeStore, Rows, seconds_from_now
from tests.integration.archived import Archived, drop_days
from tests.integration.conftest import Command, Lease

WEEK = timedelta(days=7)


def settled(store: Store, lease: Lease) -> bool:
    """Whether a message can be taken and settled."""
    batch = lease(1, by=store)
    settled, _ = store.leases.settle(batch.token, "orders", [Verdict(message, Step.SENT) for message in batch.messages])
    return len(settled) == 1


@contextmanager
def report(archived: Archived, table: str = "outbox_all") -> Iterator[None]:
    """Somebody who has read the archive, and whose transaction is still open."""
    with archived.engine.connect() as connection, connection.begin():
        connection.execute(text(f"SELECT count(*) FROM {archived.schema}.{table}"))
        yield


class TestWhatGoes:
    def test_drops_days_that_are_wholly_older(
        self, archived: Archived, store: Store, new_store: MakeStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for days in (7, 8, 9, 30):
            archived.fill(archived.ago(days), 3, last_error_code="busy")
        monkeypatch.setattr(retention, "ROWS_A_BATCH", 2)
        done = drop_days(store, WEEK)
        assert archived.value(f"SELECT count(*) FROM {archived.schema}.outbox_trouble") == 3
        assert done == Maintained(dropped=[archived.ago(days) for days in (30, 9, 8)])
        assert archived.days() == {archived.ago(7)}
        assert archived.count() == 3
        archived.fill(archived.ago(900))
        assert maintain(new_store(archive_retention=0)).dropped == []

    def test_a_day_ends_at_midnight_utc_wherever_the_session_is(
        self, archived: Archived, new_store: MakeStore, settings: MakeSettings
    ) -> None:
        url = engine_url(settings().database_url or "").update_query_dict({"options": "-c timezone=Pacific/Auckland"})
        store = new_store(database_url=url.render_as_string(hide_password=False), statement_timeout=0)
        archived.run(f"UPDATE {archived.schema}.outbox_days SET date = date - 1")
        assert maintain(store).failed == []
        days = "SELECT date FROM {}.outbox_days WHERE ended_at IS NULL"
        assert archived.value(days.format(archived.schema)) == archived.today

    def test_keeps_a_day_of_which_a_message_is_not_delivered(
        self, archived: Archived, store: Store, rows: Rows
    ) -> None:
        days = [archived.ago(days) for days in (93, 92, 91, 90)]
        states: list[dict[str, Any]] = [{}, {"status": "dead"}, {"locked_until": seconds_from_now(3600)}]
        for day, state in zip(days, states, strict=False):
            archived.fill(day, 3)
            rows.insert(1, seq=(archived.number(day) << 32) + 100, **state)
        archived.fill(days[3])
        done = maintain(store)
        assert (done.dropped, list(done.kept)) == (days[3:], days[:3])
        assert all("1 of its messages are still at work" in why for why in done.kept.values())
        assert (len(rows.hot()), archived.count()) == (3, 9)

    def test_keeps_a_day_of_which_a_message_is_nowhere(
        self, archived: Archived, store: Store, rows: Rows, schema: str
    ) -> None:
        """A message has ended if the journal says so, not if it is in no table of work."""
        day = archived.ago(90)
        archived.fill(day, 3)
        rows.insert(1, seq=(archived.number(day) << 32) + 100)
        archived.run(f"DELETE FROM {schema}.outbox_ready")
        done = maintain(store)
        assert done.dropped == []
        assert "1 of its messages are neither at work" in done.kept[day]

    @pytest.mark.parametrize(("ended", "gone"), [("2 hours", True), ("30 minutes", False)])
    def test_keeps_a_day_for_an_hour_however_short_the_retention_is(
        self, archived: Archived, new_store: MakeStore, ended: str, gone: bool
    ) -> None:
        archived.fill(archived.ago(1), 3)
        archived.fill(archived.today)
        archived.run(f"UPDATE {archived.schema}.outbox_days SET ended_at = now() - interval '{ended}' "
                     "WHERE ended_at IS NOT NULL")  # fmt: skip
        assert maintain(new_store(archive_retention=1)).dropped == [archived.ago(1)] * gone

    def test_deletes_old_counts_workers_and_acts(self, store: Store, engine: Engine, rows: Rows) -> None:
        t = rows.tables
        with engine.begin() as connection:
            for days in (0, 2, 400):
                at = seconds_from_now(-86_400.0 * days)
                connection.execute(insert(t.tallies).values(minute=at, destination="orders", outcome="sent", count=1))
                connection.execute(insert(t.audit).values(at=at, who="me", action="pause"))
                for kind in ("worker", "tasks"):
                    connection.execute(insert(t.heartbeats).values(name=f"{kind}{days}", kind=kind, seen_at=at))
            connection.execute(insert(t.heartbeats).values(name="claim", kind="claim", seen_at=at))
        assert maintain(store).failed == []
        with engine.connect() as connection:
            assert connection.scalar(select(func.count()).select_from(t.tallies)) == 1
            assert connection.scalar(select(func.count()).select_from(t.audit)) == 2
            assert set(connection.scalars(select(t.heartbeats.c.name))) == {"worker0", "tasks0", "claim"}


class TestNobodyWaits:
    @pytest.mark.parametrize(
        "in_the_way", ["SELECT count(*) FROM {}.outbox_all", "DELETE FROM {}.outbox_journal WHERE count < 0"]
    )
    def test_claims_and_settles_go_on_during_its_tries(
        self, archived: Archived, store: Store, lease: Lease, monkeypatch: pytest.MonkeyPatch, in_the_way: str
    ) -> None:
        """Whoever reads or writes the archive holds it: behind a request for its lock every settle would wait."""
        monkeypatch.setattr(days_module, "TRIES", 1_000_000)
        monkeypatch.setattr(days_module, "WAITS", (0.0, 0.001))
        archived.fill(archived.ago(8))
        found: list[Maintained] = []
        trimming = threading.Thread(target=lambda: found.append(drop_days(store, WEEK)))
        with archived.engine.connect() as connection, connection.begin():
            connection.execute(text(in_the_way.format(archived.schema)))
            trimming.start()
            for _ in range(50):
                assert settled(store, lease)
            assert trimming.is_alive()
            assert archived.count(archived.ago(8)) == 1
        trimming.join(20)
        assert [done.dropped for done in found] == [[archived.ago(8)]]

    def test_a_run_holds_back_no_vacuum(self, store: Store, engine: Engine) -> None:
        with store.alone("maintain") as ours, engine.connect() as connection:
            assert ours
            horizons = connection.execute(
                text(
                    "SELECT a.backend_xmin, a.backend_xid, a.state FROM pg_stat_activity a "
                    "JOIN pg_locks l USING (pid) WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock'"
                )
            ).all()
        assert [tuple(row) for row in horizons] == [(None, None, "idle in transaction")]


def test_what_fails_does_not_stop_the_rest_and_a_second_run_is_refused(
    archived: Archived, store: Store, new_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    archived.fill(archived.ago(8))
    archived.run(f"DROP TABLE {archived.schema}.outbox_inbox")
    with store.alone("maintain"), pytest.raises(MaintainedElsewhere):
        maintain(new_store())
    with caplog.at_level(logging.WARNING, "outbox_tasks"):
        done = maintain(store)
    assert done.dropped == [archived.ago(8)]
    assert len(done.failed) == len(caplog.records) == 1


def test_a_run_stops_after_a_moment_and_says_that_there_is_more(
    archived: Archived, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RUN_SECONDS", 0)
    for days in (10, 9, 8):
        archived.fill(archived.ago(days))
    runs = [maintain(store) for _ in range(4)]
    assert [run.dropped for run in runs] == [[archived.ago(10)], [archived.ago(9)], [archived.ago(8)], []]
    assert [run.more for run in runs] == [True, True, False, False]
    for days in (9, 8):
        archived.fill(archived.ago(days))
    with report(archived):  # a run that gets nowhere does not ask for more
        stuck = maintain(store)
    assert (len(stuck.kept), stuck.more) == (2, False)
    assert "were reading or writing there" in stuck.kept[archived.ago(9)]


def test_the_command_goes_on_until_all_is_done(
    archived: Archived, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day that somebody reads does not keep the others."""
    monkeypatch.setattr(retention, "RUN_SECONDS", 0)
    held = archived.fill(archived.ago(10))
    for days in (9, 8):
        archived.fill(archived.ago(days))
    days = [str(archived.ago(days)) for days in (10, 9, 8)]
    with report(archived, held):
        shown = command("maintain", "--json")
        found = json.loads(shown.stdout)
        assert (shown.exit_code, found["dropped"], list(found["kept"]), found["failed"]) == (1, days[1:], days[:1], [])
    shown = command("maintain")
    assert (shown.exit_code, shown.output) == (0, "Made 0 partitions, forgot 0 marks, dropped 1 day.\n")
