"""Messages in the relay's queues that no relay wrote: they are refused, and the workers go on."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from kombu import Connection, Producer

from outbox_tasks.broker.names import CLAIM_TASK, DRAIN_TASK, PUBLISH_TASK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import CALM, check, drained

ID = str(uuid4())
PLAIN: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
CALL = {"id": ID, "task": PUBLISH_TASK, "retries": 0}
DRAIN = {**CALL, "task": DRAIN_TASK}
ARGUMENTS = ["order.created", "orders", 0, ID]


def body(arguments: Any = ARGUMENTS, keywords: Any = None, embedded: Any = PLAIN) -> str:
    return json.dumps([arguments, {} if keywords is None else keywords, embedded])


RUBBISH: dict[str, tuple[str, dict[str, Any]]] = {
    "protocol 1": (json.dumps({"id": ID, "task": PUBLISH_TASK, "args": ARGUMENTS, "kwargs": {}}), {}),
    "protocol 1, of a task that is not ours": (json.dumps({"task": "shop.pay", "args": [], "kwargs": {}}), {}),
    "arguments in a body of both protocols": (json.dumps({"args": ARGUMENTS, "kwargs": {}}), CALL),
    "too few arguments": (body(["order.created"]), CALL),
    "too many arguments": (body([*ARGUMENTS, 1]), CALL),
    "keywords in a list": (body(keywords=["more"]), CALL),
    "unknown keywords": (body(keywords={"more": True, "sender": "me"}), CALL),
    "no JSON": ("{", CALL),
    "null": ("null", CALL),
    "a huge nesting": ("[" * 100_000, CALL),
    "no id": (body(), {"task": PUBLISH_TASK}),
    "an id that is none": (body(), {**CALL, "id": ["a"]}),
    "an attempt that is no number": (body(["order.created", "orders", "first", ID]), CALL),
    "an attempt beyond all numbers": (body(["order.created", "orders", 2**31, ID]), CALL),
    "a lease that is none": (body(["order.created", "orders", 0, 5]), CALL),
    "a destination that no database takes": (body(["order.created", "or\x00ders", 0, ID]), CALL),
    "a drain without a destination": (body([]), DRAIN),
    "a drain of a destination that no database takes": (body(["or\x00ders"]), DRAIN),
    "a slot that is none": (body(["orders", "first"]), DRAIN),
    "a drain with keywords": (body(["orders"], {"more": True}), DRAIN),
    "an ETA that is none": (body(), {**CALL, "eta": "tomorrow"}),
    "a wait that is none": (body(), {**CALL, "outbox_wait": "long"}),
    "time limits of its own": (body(), {**CALL, "timelimit": [1, None]}),
    "retries that can't be counted": (body(), {**CALL, "retries": None}),
    "a task to call afterwards": (body(embedded={**PLAIN, "callbacks": [{"task": CLAIM_TASK}]}), CALL),
    "a task that nobody knows": (body(), {**CALL, "task": "shop.pay"}),
    "a task without a name": (body(), {**CALL, "task": ["a"]}),
}

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
            for text, headers in RUBBISH.values():
                _put(producer, queue, text, headers)
            producer.publish({"a": {1}}, serializer="pickle", exchange="", routing_key=queue, headers=CALL)
            for one in NO_MESSAGES:
                client.lpush(queue, one)
        eventually(lambda: not client.llen(PUBLISH_QUEUE))
        ids = rows.insert(30)
        drained(rows)
        eventually(lambda: not client.exists("unacked"))
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, None)}
    expected = len(RUBBISH) + 1 + len(NO_MESSAGES)
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
