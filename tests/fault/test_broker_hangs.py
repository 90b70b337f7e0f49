"""Celery's broker hangs, is full, or loses its connections silently: the workers are back soon after it is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from lab.proxy import Proxy
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay, Worker, freeze
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import destinations, queued

SOON = 35.0
"""Seconds within which every worker works again, also on a very busy machine. No lease ends as soon."""


@pytest.fixture
def proxy(own_redis: EmbeddedValkey) -> Iterator[Proxy]:
    """Between the relay and its broker."""
    with Proxy(urlsplit(own_redis.url).port or 0) as made:
        yield made


@pytest.fixture
def values(postgres_url: str, schema: str, stream: Stream, proxy: Proxy) -> dict[str, Any]:
    """The usual leases, of a minute: nothing here is to wait for one."""
    return {
        "database_url": postgres_url,
        "database_schema": schema,
        "broker_url": f"redis://127.0.0.1:{proxy.port}/0",
        "destinations": destinations(stream),
        "claim_interval": 0.5,
        "singles": "all",  # so that some wait in the broker
    }


@pytest.fixture
def workers(relay: Relay, rows: Rows, stream: Stream) -> list[Worker]:
    """They have sent something, and hold retries that are not due yet."""
    made = [relay.claim(), relay.publish(), relay.publish(2, pool="solo")]
    relay.beat()
    relay.ready()
    later = json.dumps({"fail": 1, "retry_after": 50}).encode()
    for count in range(1, 6):
        rows.insert(8, destination="told", payload=later)
        eventually(lambda count=count: sum(row.attempts for row in rows.hot()) == 8 * count)
    return made


def arrives(rows: Rows, stream: Stream, within: float) -> None:
    """What is written now, one message after another so that both publish workers get some."""
    ends = time.monotonic() + within
    ids = []
    for _ in range(10):
        ids += rows.insert(1)
        time.sleep(0.1)
    eventually(lambda: set(ids) <= set(stream.ids()), max(ends - time.monotonic(), 0.1))


def test_workers_are_back_soon_after_dead_connections_a_full_memory_and_a_hang(
    relay: Relay, workers: list[Worker], rows: Rows, stream: Stream, proxy: Proxy, own_redis: EmbeddedValkey
) -> None:
    _, forking, solo = workers
    former = forking.container.pool()
    former[0].kill()  # its successor inherits connections, which are about to be replaced
    eventually(lambda: set(forking.container.pool()) - set(former))
    proxy.forget()
    arrives(rows, stream, SOON)

    rows.insert(160, destination="told", payload=json.dumps({"nap": 0.05}).encode())
    eventually(lambda: queued(own_redis))  # so that workers take something while there is no memory
    with Stream(own_redis.url, "any").client as client:
        client.config_set("maxmemory", "1mb")
        eventually(lambda: not queued(own_redis))
        client.config_set("maxmemory", "0")
    arrives(rows, stream, SOON)

    server = psutil.Process(own_redis.pid)
    freeze(server)
    rows.insert(50)
    time.sleep(7)  # longer than it is waited for
    server.resume()
    arrives(rows, stream, SOON)
    for worker in workers:
        assert worker.container.status == "running"
        assert worker is forking or "exited with" not in worker.logs()  # no process of a pool either
    solo.container.child.stop()  # the other one sends all from now on
    arrives(rows, stream, SOON)
