"""The database hangs: its server's processes stand still, or a network has lost the connections and told nobody."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import distribution
from tests.conftest import Stream, eventually
from tests.fault.conftest import OwnDatabase, check, drained
from tests.proxy import Proxy, frozen

MANY = 3000

LONG = {"hard_time_limit": 10, "run_lease": 11, "soft_shutdown_timeout": 10}
"""The soft time limit strikes while the server stands still, and the hard one does not end the process."""


def test_everything_is_delivered_after_the_server_stood_still(
    relay_on_own: Relay, database: OwnDatabase, stream: Stream
) -> None:
    workers = [relay_on_own.publish(concurrency=2, max_in_flight=500, **LONG), relay_on_own.claim(max_in_flight=500)]
    relay_on_own.beat()
    relay_on_own.ready()
    ids = database.rows.insert(MANY)
    eventually(lambda: len(stream) > MANY / 20)
    with frozen(database.server):
        assert len(stream) < MANY
        time.sleep(relay_on_own.settings.soft_time_limit + 2)
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
            relay.publish(concurrency=2, pool="threads", max_in_flight=500)
            relay.claim(max_in_flight=500)
            relay.beat()
            relay.ready()
            ids = database.rows.insert(MANY)
            eventually(lambda: len(stream) > MANY / 20)
            proxy.forget()
            assert len(stream) < MANY
            drained(database.rows)
            check(database.rows, stream, ids)
            # The claim is at work again, not only those who had enough to send.
            last = database.rows.insert()
            eventually(lambda: last[0] in stream.ids(), 20)
        finally:
            relay.close()
