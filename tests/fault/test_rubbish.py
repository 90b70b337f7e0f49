"""Messages in the relay's queues that no relay wrote: they are refused, and the workers go on."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Producer

from outbox_tasks.broker.names import PUBLISH_TASK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import CALM, check, drained
from tests.unit.test_attacks import FORGED

NO_MESSAGES = [b"rubbish", b"5", b"[]", b"null", b'{"a": 1}', b'{"body": "", "properties": {}, "headers": null}']


@pytest.fixture
def values(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, **CALM}


def test_rubbish_in_the_queues_is_refused_in_a_line_each_and_ends_no_worker(
    relay: Relay, rows: Rows, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    workers = {PUBLISH_QUEUE: relay.publish(), CLAIM_QUEUE: relay.claim()}
    relay.beat()
    relay.ready()
    with Connection(own_redis.url) as connection, Stream(own_redis.url, "any").client as client:
        producer = Producer(connection)
        for queue in workers:
            for text, headers in FORGED.values():
                _put(producer, queue, text, headers)
            pickled = {"serializer": "pickle", "headers": {"id": "1", "task": PUBLISH_TASK}}
            producer.publish({"a": {1}}, exchange="", routing_key=queue, **pickled)
            for one in NO_MESSAGES:
                client.lpush(queue, one)
        eventually(lambda: not client.llen(PUBLISH_QUEUE))
        ids = rows.insert(30)
        drained(rows)
        eventually(lambda: not client.exists("unacked"))
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, None)}
    expected = len(FORGED) + 1 + len(NO_MESSAGES)
    for queue, worker in workers.items():
        eventually(lambda worker=worker: len(refusals(worker)) >= expected)
        assert len(refusals(worker)) == expected, (queue, refusals(worker))
        assert "Traceback" not in worker.logs()
        assert "Connection to broker lost" not in worker.logs()
        assert worker.container.status == "running"


def refusals(worker: Worker) -> list[str]:
    return [line for line in worker.logs().splitlines() if "refused" in line]


def _put(producer: Producer, queue: str, text: str, headers: dict[str, Any]) -> None:
    kind: dict[str, Any] = {"content_type": "application/json", "content_encoding": "utf-8"}
    producer.publish(text, exchange="", routing_key=queue, headers=headers, **kind)
