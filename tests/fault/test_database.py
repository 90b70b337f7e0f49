"""The database hangs, is killed, or another server takes over."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from lab.frozen import frozen
from lab.trace import Trace
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.operating.problems import examine
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import distribution
from tests.claims import drain_batches
from tests.conftest import Rows, Stream, eventually, seconds_from_now
from tests.fault.conftest import (
    SLOW,
    OwnDatabase,
    archive_locked,
    check,
    drained,
    in_the_middle,
    slow_messages,
    waiting_for_locks,
)
from tests.storage.relaying import Receiver

LONG = {"send_timeout": 4}
"""While the server stands still, the soft time limit ends the send, and the hard one does not end the process."""


def test_a_drain_goes_on_after_the_database_stood_still_was_killed_and_was_stopped(
    relay_on_own: Relay, database: OwnDatabase, stream: Stream
) -> None:
    workers = [relay_on_own.publish(concurrency=2, **SLOW, **LONG), relay_on_own.claim(**SLOW)]
    relay_on_own.beat()
    relay_on_own.ready()

    def stands_still() -> None:
        with frozen(database.server.pid):
            time.sleep(relay_on_own.settings.replace(**LONG).soft_time_limit + 1)

    ids: list[str] = []
    for goes in (stands_still, database.server.kill, database.server.restart):
        ids += slow_messages(database.rows)
        in_the_middle(stream)
        goes()
        database.server.start()
        assert len(set(stream.ids())) < len(ids)
        drained(database.rows)
        check(database.rows, stream, ids)
    assert all(worker.alive for worker in workers)


def test_a_message_sent_as_the_database_died_is_sent_again_with_the_cause(
    relay_on_own: Relay, database: OwnDatabase, stream: Stream
) -> None:
    worker = relay_on_own.publish(pool="solo")
    relay_on_own.claim()
    relay_on_own.beat()
    relay_on_own.ready()
    with archive_locked(database.engine, database.schema) as connection:
        [id] = database.rows.insert()
        eventually(lambda: stream.ids() == [id])
        eventually(lambda: waiting_for_locks(database.engine, database.schema))
        worker.wait_for_log("could not settle 1 messages")  # a second later: its begin has reached the disk
        database.server.kill()
        connection.invalidate()
    # Away for longer than a publisher is ready to wait, so the message stays begun.
    worker.wait_for_log(f"[{id}] raised expected: NotSettled")
    database.server.start()
    drained(database.rows)
    assert check(database.rows, stream, [id]) == 1
    [row] = database.rows.archived()
    assert (row.attempts, row.last_error_code) == (2, "unsettled")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """A primary, and a standby that has all that is committed there."""
    places = [tmp_path / "primary", tmp_path / "standby"]
    with EmbeddedPostgres(places[0]):
        """Made, and stopped again."""
    subprocess.run(["cp", "-a", *map(str, places)], check=True)
    (places[1] / "postgres" / "data" / "standby.signal").touch()
    with EmbeddedPostgres(places[0]) as primary:
        url = make_url(primary.url)
        source = f"host={url.host} port={url.port} user={url.username} password={url.password} application_name=other"
        with EmbeddedPostgres(places[1], settings={"primary_conninfo": source}) as standby:
            with psycopg.connect(primary.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'other'")
                connection.execute("SELECT pg_reload_conf()")
                in_step = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"
                eventually(lambda: connection.execute(in_step).rowcount)
            yield primary, standby


def test_a_failover_from_a_host_that_hangs_to_a_synchronous_standby_loses_nothing(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres], values: dict[str, Any], stream: Stream, tmp_path: Path
) -> None:
    primary, standby = pair
    database = OwnDatabase(primary)
    hosts = "&".join(f"host={make_url(server.url).host}:{server.port}" for server in pair)
    login = make_url(primary.url)
    url = f"postgresql://{login.username}:{login.password}@/outbox?{hosts}&target_session_attrs=read-write"
    relay = Relay(
        tmp_path,
        {**values, "database_url": url, "database_schema": database.schema},
        distribution(tmp_path / "plugins"),
    )
    other = create_engine(engine_url(standby.url))
    rows = Rows(other, database.schema)
    with ExitStack() as undone:
        undone.callback(other.dispose)
        undone.callback(relay.close)
        # A host that does not answer is passed over after five seconds, within the soft time limit.
        relay.publish(concurrency=2, **SLOW, **LONG)
        relay.claim(**SLOW)
        relay.beat()
        relay.ready()
        ids = slow_messages(database.rows)
        database.engine.dispose()
        in_the_middle(stream)
        undone.enter_context(frozen(primary.pid))
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        assert len(stream) < len(ids)
        last = rows.insert()
        eventually(lambda: last[0] in stream.ids(), 60)
        drained(rows)
        check(rows, stream, [*ids, *last])
        relay.close()


def test_a_failover_to_an_asynchronous_standby_is_noticed_and_explains_what_is_repeated(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres], values: dict[str, Any], tmp_path: Path
) -> None:
    """The primary delivers, and dies before the standby has heard of it."""
    primary, standby = pair
    database = OwnDatabase(primary)
    known = {"database_schema": database.schema, "destinations": values["destinations"]}
    before, after = (Settings(database_url=server.url, **known) for server in pair)
    other = create_engine(engine_url(standby.url))
    rows = Rows(other, database.schema)
    with ExitStack() as undone:
        undone.callback(other.dispose)
        store = undone.enter_context(closing(Store.connect(before)))
        assert store.claims.note_lost_commits() is None
        assert store.claims.note_lost_commits() is None
        assert examine(before, only=["timeline_changed"]).problems == []
        standby_told = examine(after).problems[0]
        assert (standby_told.code, "is a standby." in standby_told.fact) == ("database_read_only", True)
        trace = Trace(database.engine, database.schema)
        trace.install()
        ids = database.rows.insert(3)
        later = database.rows.insert(locked_until=seconds_from_now(3600))
        _cut_off(primary, tmp_path / "primary")
        arrived: list[str] = []
        _deliver(store, arrived)
        database.engine.dispose()
        primary.kill()
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        taken_over = undone.enter_context(closing(Store.connect(after)))
        assert taken_over.claims.note_lost_commits() == 3
        assert taken_over.claims.note_lost_commits() is None
        _deliver(taken_over, arrived)
        assert sorted(arrived) == sorted(ids * 2)
        assert {row.last_error_code for row in rows.archived()} == {"timeline_changed"}
        [waits] = rows.hot()
        assert (str(waits.id), waits.last_error_code) == (later[0], None)
        found = Trace(other, database.schema).check()
        assert not found.wrong, str(found)
        [said] = examine(after, only=["timeline_changed"]).problems
        assert "00000002" in said.fact


def _cut_off(primary: EmbeddedPostgres, place: Path) -> None:
    """Its standby has all until now, and gets nothing more."""
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        rules = place / "postgres" / "data" / "pg_hba.conf"
        rules.write_text(f"host replication all all reject\n{rules.read_text()}")
        connection.execute("SELECT pg_reload_conf()")
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication"
        eventually(lambda: connection.execute(cut).rowcount == 0)


def _deliver(store: Store, arrived: list[str]) -> None:
    receiver = Receiver()
    drain_batches(store, {"orders": receiver})
    arrived += [message.id for message in receiver.got]
