"""Celery's broker forgets everything, hangs, is full, loses its connections silently, or has messages of others. It is
not where the truth is."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from kombu import Connection, Producer

from lab.proxy import Proxy
from outbox_tasks.broker.names import PUBLISH_TASK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE
from tests.acceptance.nodes import Node, Relay, freeze
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import (
    CALM,
    SLOW,
    Here,
    check,
    destinations,
    drained,
    in_the_middle,
    queued,
    slow_messages,
)
from tests.unit.test_attacks import FORGED

README = Path(__file__).parents[2] / "README.md"
SOON_SECONDS = 35.0
"""Within it every worker works again, also on a very busy machine. No lease ends as soon."""


def flush(server: EmbeddedValkey) -> None:
    with Stream(server.url, "any").client as client:
        client.flushall()


class TestWhatTheBrokerForgets:
    """It does not wait for its lease."""

    @pytest.fixture
    def values(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, **CALM}

    def test_before_the_relay_starts_or_while_it_drains_is_claimed_again_and_loses_no_attempt(
        self, relay: Relay, here: Here, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
    ) -> None:
        ids = rows.insert(10)
        assert here.claim().singles == 10
        flush(own_redis)
        workers = [relay.publish(concurrency=2, **SLOW), relay.claim(**SLOW)]
        relay.beat()
        relay.ready()
        drained(rows, 80)
        assert check(rows, stream, ids) == 0
        assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, "lease_expired")}

        ids += slow_messages(rows)
        in_the_middle(stream)
        flush(own_redis)
        assert len(stream) < len(ids)
        drained(rows, 80)
        ids += slow_messages(rows)
        in_the_middle(stream)
        own_redis.kill()
        ids += rows.insert(100)  # the outage costs the application nothing
        own_redis.start()
        assert len(stream) < len(ids)
        drained(rows, 80)
        assert check(rows, stream, ids) == 0
        assert {row.attempts for row in rows.archived()} == {1}
        assert all(worker.alive for worker in workers)


def test_the_single_worker_of_readme_delivers_what_was_written_by_sql(relay: Relay, rows: Rows, stream: Stream) -> None:
    """Nobody nudges it: without its beat the row waits for ever."""
    [command] = re.findall(r"`celery (-A outbox_tasks worker [^`]*-n all@%h)`", README.read_text(encoding="utf-8"))
    relay.worker([sys.executable, "-m", "celery", *command.split(), "-l", "INFO"])
    relay.ready()
    ids = rows.insert(3)
    drained(rows)
    assert sorted(stream.ids()) == sorted(ids)


class TestBehindAProxy:
    @pytest.fixture
    def proxy(self, own_redis: EmbeddedValkey) -> Iterator[Proxy]:
        """Between the relay and its broker."""
        with Proxy(urlsplit(own_redis.url).port or 0) as made:
            yield made

    @pytest.fixture
    def values(self, postgres_url: str, schema: str, stream: Stream, proxy: Proxy) -> dict[str, Any]:
        """The usual leases, of a minute: nothing here is to wait for one."""
        return {
            "database_url": postgres_url,
            "database_schema": schema,
            "broker_url": f"redis://127.0.0.1:{proxy.port}/0",
            "destinations": destinations(stream),
            "claim_interval": 0.5,
            "singles": "all",  # so that some wait in the broker
        }

    def test_workers_are_back_soon_after_dead_connections_a_full_memory_and_a_hang(
        self, relay: Relay, rows: Rows, stream: Stream, proxy: Proxy, own_redis: EmbeddedValkey
    ) -> None:
        _, forking, solo = workers = [relay.claim(), relay.publish(), relay.publish(2, pool="solo")]
        relay.beat()
        relay.ready()
        later = json.dumps({"fail": 1, "retry_after": 50}).encode()
        for count in range(1, 6):  # they hold retries that are not due yet
            rows.insert(8, destination="told", payload=later)
            eventually(lambda count=count: sum(row.attempts for row in rows.hot()) == 8 * count)

        former = forking.pool()
        former[0].kill()  # its successor inherits connections, which are about to be replaced
        eventually(lambda: set(forking.pool()) - set(former))
        proxy.forget()
        arrives(rows, stream)

        rows.insert(160, destination="told", payload=json.dumps({"nap": 0.05}).encode())
        eventually(lambda: queued(own_redis))  # so that workers take something while there is no memory
        with Stream(own_redis.url, "any").client as client:
            client.config_set("maxmemory", "1mb")
            eventually(lambda: not queued(own_redis))
            client.config_set("maxmemory", "0")
        arrives(rows, stream)

        server = psutil.Process(own_redis.pid)
        freeze(server)
        rows.insert(50)
        time.sleep(7)  # longer than it is waited for
        server.resume()
        arrives(rows, stream)
        for worker in workers:
            assert worker.alive
            assert worker is forking or "exited with" not in worker.logs()  # no process of a pool either
        solo.child.stop()  # the other one sends all from now on
        arrives(rows, stream)


def arrives(rows: Rows, stream: Stream) -> None:
    """What is written now, one message after another so that both publish workers get some."""
    ends = time.monotonic() + SOON_SECONDS
    ids = []
    for _ in range(10):
        ids += rows.insert(1)
        time.sleep(0.1)
    eventually(lambda: set(ids) <= set(stream.ids()), max(ends - time.monotonic(), 0.1))


class TestRubbish:
    NO_MESSAGES = (b"rubbish", b"5", b"[]", b"null", b'{"a": 1}', b'{"body": "", "properties": {}, "headers": null}')

    @pytest.fixture
    def values(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, **CALM}

    def test_in_the_queues_is_refused_in_a_line_each_and_ends_no_worker(
        self, relay: Relay, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
    ) -> None:
        workers = {PUBLISH_QUEUE: relay.publish(), CLAIM_QUEUE: relay.claim()}
        relay.beat()
        relay.ready()
        plain: dict[str, Any] = {"exchange": "", "content_type": "application/json", "content_encoding": "utf-8"}
        with Connection(own_redis.url) as connection, Stream(own_redis.url, "any").client as client:
            producer = Producer(connection)
            for queue in workers:
                for text, headers in FORGED.values():
                    producer.publish(text, routing_key=queue, headers=headers, **plain)
                pickled = {"serializer": "pickle", "headers": {"id": "1", "task": PUBLISH_TASK}}
                producer.publish({"a": {1}}, exchange="", routing_key=queue, **pickled)
                for bytes_ in self.NO_MESSAGES:
                    client.lpush(queue, bytes_)
            eventually(lambda: not client.llen(PUBLISH_QUEUE))
            ids = rows.insert(30)
            drained(rows)
            eventually(lambda: not client.exists("unacked"))
        assert check(rows, stream, ids) == 0
        assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, None)}
        expected = len(FORGED) + 1 + len(self.NO_MESSAGES)
        for queue, worker in workers.items():
            eventually(lambda worker=worker: len(refusals(worker)) >= expected)
            assert len(refusals(worker)) == expected, (queue, refusals(worker))
            assert "Traceback" not in worker.logs()
            assert "Connection to broker lost" not in worker.logs()
            assert worker.alive


def refusals(worker: Node) -> list[str]:
    return [line for line in worker.logs().splitlines() if "refused" in line]
