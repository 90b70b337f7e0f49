"""The database hangs: its server's processes stand still, or a network has lost the connections and told nobody."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from lab.frozen import frozen
from lab.proxy import Proxy
from lab.trace import Trace
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.operating.problems import examine
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import distribution
from tests.claims import drain_batches
from tests.conftest import Rows, Stream, eventually, seconds_from_now
from tests.fault.conftest import SLOW, OwnDatabase, check, drained, in_the_middle, slow_messages

LONG = {"send_timeout": 4}
"""While the server stands still, the soft time limit ends the send, and the hard one does not end the process."""


def test_everything_is_delivered_after_the_server_stood_still(
    relay_on_own: Relay, database: OwnDatabase, stream: Stream
) -> None:
    workers = [relay_on_own.publish(concurrency=2, **SLOW, **LONG), relay_on_own.claim(**SLOW)]
    relay_on_own.beat()
    relay_on_own.ready()
    ids = slow_messages(database.rows)
    in_the_middle(stream)
    with frozen(database.server.pid):
        assert len(stream) < len(ids)
        time.sleep(relay_on_own.settings.replace(**LONG).soft_time_limit + 1)
    ids += database.rows.insert(100)
    drained(database.rows)
    check(database.rows, stream, ids)
    assert {worker.container.status for worker in workers} == {"running"}


def test_connections_that_are_lost_in_silence_are_replaced(
    database: OwnDatabase, values: dict[str, Any], stream: Stream, tmp_path: Path
) -> None:
    url = make_url(database.server.url)
    with Proxy(url.port or 0) as proxy:
        far = url.set(port=proxy.port).render_as_string(hide_password=False)
        theirs = {**values, "database_url": far, "database_schema": database.schema}
        relay = Relay(tmp_path, theirs, distribution(tmp_path / "plugins"))
        try:
            relay.publish(concurrency=2, pool="threads", **SLOW)
            relay.claim(**SLOW)
            relay.beat()
            relay.ready()
            ids = slow_messages(database.rows)
            in_the_middle(stream)
            proxy.forget()
            assert len(stream) < len(ids)
            drained(database.rows)
            check(database.rows, stream, ids)
            # The claim is at work again, not only those who had enough to send.
            last = database.rows.insert()
            eventually(lambda: last[0] in stream.ids())
        finally:
            relay.close()


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


@pytest.mark.parametrize("end", ["killed", "frozen"])
def test_a_failover_to_a_synchronous_standby_loses_nothing(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres], values: dict[str, Any], stream: Stream, tmp_path: Path, end: str
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
        if end == "killed":
            primary.kill()
        else:
            undone.enter_context(frozen(primary.pid))
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        assert len(stream) < len(ids)
        last = rows.insert()
        began = time.monotonic()
        eventually(lambda: last[0] in stream.ids(), 60)
        print(f"first new message after {time.monotonic() - began:.1f} s")
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
        assert store.note_lost_commits() is None
        assert store.note_lost_commits() is None
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
        assert taken_over.note_lost_commits() == 3
        assert taken_over.note_lost_commits() is None
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
    class Taking:
        def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
            arrived.extend(message.id for message in messages)
            return [Outcome.sent()] * len(messages)

        def close(self) -> None:
            """Nothing is open."""

    drain_batches(store, {"orders": Taking()})
