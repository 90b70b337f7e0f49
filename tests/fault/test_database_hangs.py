"""The database hangs: its server's processes stand still, or a network has lost the connections and told nobody."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from outbox_tasks.database.connection import engine_url
from outbox_tasks.local.frozen import frozen
from outbox_tasks.local.proxy import Proxy
from outbox_tasks.local.servers import EmbeddedPostgres
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import distribution
from tests.conftest import Rows, Stream, eventually
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
