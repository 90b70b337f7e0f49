"""Publish workers in each of Celery's pools that the relay supports. Beat and the claim worker are the same for all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kombu.utils.json import loads
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from tests.acceptance.conftest import settled
from tests.acceptance.nodes import ROOT, Relay
from tests.acceptance.publishers import SCHEME
from tests.conftest import Rows, Stream
from tests.contract.counterparts.redis_queue import read

COUNT = 90


@pytest.fixture(scope="module")
def queue(stream: Stream) -> Iterator[str]:
    """A list of kombu beside the stream."""
    name = f"{stream.name}_queue"
    yield name
    stream.client.delete(name)


@pytest.fixture(scope="module")
def destinations(stream: Stream, queue: str) -> dict[str, Any]:
    # Many sends at once. And one publisher that fails when two use it at once, as many clients would.
    return {
        "orders": {"url": stream.url},
        "queue": {"url": stream.url.replace("redis+stream", "redis").replace(stream.name, queue), "singles": "all"},
        "alone": {"url": stream.url.replace("redis+stream", SCHEME), "singles": "all"},
    }


@pytest.fixture(scope="module", autouse=True)
def others(relay: Relay) -> None:
    """What is not tested here."""
    relay.claim()
    relay.beat()


@pytest.mark.parametrize(("pool", "concurrency"), [("threads", 8), ("gevent", 40), ("solo", 1), ("prefork", 2)])
def test_every_message_that_is_archived_as_sent_has_arrived(
    pool: str,
    concurrency: int,
    relay: Relay,
    outbox: Outbox,
    engine: Engine,
    rows: Rows,
    stream: Stream,
    queue: str,
) -> None:
    worker = relay.publish(concurrency=concurrency, pool=pool)
    relay.ready()
    try:
        before = set(stream.ids())
        with Session(engine) as session, session.begin():
            sent = {
                name: {str(outbox.publish(session, f"{pool}.ran", {"nap": 0.01}, to=name)) for _ in range(COUNT)}
                for name in ("orders", "queue", "alone")
            }
        settled(rows)
    finally:
        worker.teardown()
        relay.nodes.remove(worker)
    assert not rows.hot(), worker.logs()
    listed: Any = stream.client.lrange(queue, 0, -1)
    arrived = Counter(read(loads(text)).attributes["id"] for text in listed)
    assert sent["queue"] <= arrived.keys()
    assert sent["orders"] | sent["alone"] <= set(stream.ids()) - before
    assert {str(row.id) for row in rows.archived() if row.attempts > 1} == set()
    assert {id for id, count in arrived.items() if count > 1} == set()


COOPERATING = """
from gevent import monkey
monkey.patch_all()
import time
import gevent
from sqlalchemy import text
from outbox_tasks import Settings
from outbox_tasks.relay.store import Store

store = Store.connect(Settings())
store.rows(text("select 1"), {})
started = time.monotonic()
gevent.joinall([gevent.spawn(store.rows, text("select pg_sleep(1)"), {}) for _ in range(5)], raise_error=True)
print(time.monotonic() - started)
"""


def test_greenlets_wait_for_the_database_side_by_side(relay: Relay) -> None:
    env = {**os.environ, **relay.env()}
    argv = [sys.executable, "-W", "ignore", "-c", COOPERATING]
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 5  # one after the other they would take that long
