"""What the Celery publisher makes of messages, read back raw."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest
import redis

from lab.proxy import Proxy
from outbox_tasks.model import Result
from tests.contract.conftest import Running
from tests.contract.counterparts import rabbitmq
from tests.contract.counterparts.valkey import CeleryTask as Counterpart
from tests.contract.messages import SENT, connected, loaded, message, published, results, sent_by, within

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "v=1"}


def test_sends_a_task_that_celery_takes(target: Counterpart) -> None:
    assert published(target, message(3, headers=TRACE)) == [SENT]
    [raw] = target.raw()
    headers = raw["headers"]
    assert headers.items() >= TRACE.items(), "where tracers of Celery look"
    assert headers["task"] == "shop.on_event"
    assert headers["id"] == headers["root_id"] == headers["ce_id"] == message(3).id
    assert (headers["parent_id"], headers["retries"], headers["ignore_result"]) == (None, 0, False)
    assert raw["properties"]["correlation_id"] == message(3).id
    assert (raw["content-type"], raw["content-encoding"]) == ("application/json", "utf-8")
    args, kwargs, _ = json.loads(base64.b64decode(raw["body"]))
    assert (args, kwargs) == ([{"n": 3}], {})


DEEP = "[" * 100_000 + "]" * 100_000


def task_message(**fields: object) -> str:
    """The envelope of a stored task, with some of its fields changed."""
    whole = {
        "content_type": "application/json", "content_encoding": "utf-8", "headers": {"task": "t", "id": "i"},
        "properties": {}, "exchange": "", "routing_key": "shop", "priority": 0, "mandatory": False, "declare": [],
        "expires": None,
    }  # fmt: skip
    return json.dumps({**whole, **fields})


def test_a_stored_task_goes_as_it_was_called_with_the_trace_beside_it(target: Counterpart) -> None:
    called = {"task": "t", "id": "i", "root_id": "r", "parent_id": "p", "retries": 2, "timelimit": [3, 2]}
    envelope = task_message(
        routing_key=target.place, headers=called | {"outbox": {"id": "of the run before"}}, priority=7,
        properties={"correlation_id": "i", "reply_to": "answers", "expiration": "60000"},
    )  # fmt: skip
    assert published(target, message(headers={"celery-message": envelope, **TRACE})) == [SENT]
    target.place += "\x06\x166"  # kombu's list for this priority
    [raw] = target.raw()
    assert raw["headers"] == called | TRACE
    assert base64.b64decode(raw["body"]) == message().payload
    properties = raw["properties"]
    assert (properties["priority"], properties["correlation_id"], properties["reply_to"]) == (7, "i", "answers")
    assert properties["expiration"] == "60000"


FANOUT = {"exchange": {"name": "celery.pidbox", "type": "fanout", "durable": False}}
ODD_TASKS = [
    "{", f'{{"headers": {DEEP}}}', task_message(declare=[{"queue": 5}]), task_message(expires="soon"),
    task_message(properties={"expiration": "soon"}), task_message(content_type="application/x-yaml"),
    task_message(exchange="celery.pidbox", declare=[FANOUT]), task_message(declare=[{"queue": {"name": "another"}}]),
]  # fmt: skip


def test_what_is_no_task_of_its_queues_goes_nowhere_and_its_neighbours_are_sent(target: Counterpart) -> None:
    """Whatever a writer's role has inserted. Workers would obey a command."""
    command = b'{"method": "shutdown", "arguments": {}, "destination": null}'
    texts = [text.replace('"shop"', json.dumps(target.place)) for text in ODD_TASKS]
    odd = [message(n, payload=command, headers={"celery-message": text}) for n, text in enumerate(texts, 1)]
    odd += [message(98, payload=payload) for payload in (DEEP.encode(), b"", "é".encode("latin-1"))]
    with redis.Redis.from_url(target.server.url) as client, client.pubsub() as workers:  # type: ignore[no-untyped-call]
        workers.psubscribe("*")
        first, *dead, last = published(target, message(0), *odd, message(99))
        assert (first, last) == (SENT, SENT)
        assert [o.code for o in dead] == ["bad_task"] * len(ODD_TASKS) + ["not_json"] * 3
        assert set(results(dead)) == {Result.DEAD}
        heard = [workers.get_message(timeout=0.1) for _ in range(3)]
        assert [one for one in heard if one and one["type"] == "pmessage"] == []
        assert {key for key in map(bytes.decode, client.keys()) if "another" in key or "pidbox" in key} == set()
    assert len(target.received()) == 2


def test_a_url_may_name_several_queues_and_messages_go_to_the_first(target: Counterpart) -> None:
    stored = [
        message(n, headers={"celery-message": task_message(routing_key=queue)})
        for n, queue in enumerate(("mails", target.place, "others"))
    ]
    url = target.url(target.place).replace(f"queue={target.place}", f"queue={target.place},mails")
    with closing(loaded(url)) as publisher:
        outcomes = publisher.publish([*stored, message(3)])
    assert results(outcomes) == [Result.SENT, Result.SENT, Result.DEAD, Result.SENT]
    assert "it goes to others, and its destination's queue is" in (outcomes[2].error or "")
    assert len(target.raw()) == 2


def test_without_a_task_the_event_type_is_its_name_and_without_a_broker_the_relays_own_takes_it(
    target: Counterpart,
) -> None:
    with closing(loaded(f"celery://?queue={target.place}", broker_url=target.server.url)) as publisher:
        assert publisher.publish([message(event_type="shop.tasks.receipt")]) == [SENT]
    assert [raw["headers"]["task"] for raw in target.raw()] == ["shop.tasks.receipt"]


def test_headers_of_the_messages_do_not_replace_celerys_own(target: Counterpart) -> None:
    published(target, message(headers={"task": "evil.task", "id": "other", "compression": "zlib", "tenant": "t1"}))
    [raw] = target.raw()
    assert (raw["headers"]["task"], raw["headers"]["id"]) == ("shop.on_event", message().id)
    assert raw["headers"]["tenant"] == "t1"
    assert "compression" not in raw["headers"]


class TestRabbitMQ:
    """As the tasks' broker: it confirms each task for itself."""

    @pytest.fixture
    def rabbit(self, running: Running) -> rabbitmq.Counterpart:
        target: Any = running(rabbitmq.Counterpart)
        target.new_place()
        return target

    def url(self, rabbit: rabbitmq.Counterpart, port: int) -> str:
        broker = quote(rabbit.broker.replace(str(rabbit.port), str(port)), safe="")
        return f"celery://?task=shop.on_event&queue={rabbit.place}&broker={broker}"

    def ids(self, rabbit: rabbitmq.Counterpart) -> set[str]:
        return {task.properties["correlation_id"] for task in rabbit.raw()}

    def test_has_the_time_limit_for_all_tasks_together(self, rabbit: rabbitmq.Counterpart) -> None:
        messages = [message(n) for n in range(100)]
        with Proxy(rabbit.port) as proxy, closing(loaded(self.url(rabbit, proxy.port), send_timeout=2)) as publisher:
            connected(publisher)
            proxy.delay = 0.1
            with within(2):
                outcomes = sent_by(publisher, *messages)
            count = results(outcomes).count(Result.SENT)
            assert 0 < count < 100
            assert results(outcomes) == [Result.SENT] * count + [Result.OUTAGE] * (100 - count)
            proxy.delay = 0.0
            assert sent_by(publisher, message(100)) == [SENT]
        assert {one.id for one in (*messages[:count], message(100))} <= self.ids(rabbit)

    def test_that_has_no_queue_for_a_task_that_must_have_one_says_so(self, rabbit: rabbitmq.Counterpart) -> None:
        """`mandatory` goes along with a stored task, and without it RabbitMQ drops the task."""
        with closing(loaded(f"celery://?broker={quote(rabbit.broker, safe='')}", send_timeout=5)) as publisher:
            outcomes = {
                mandatory: sent_by(publisher, message(headers={"celery-message": task_message(mandatory=mandatory)}))[0]
                for mandatory in (False, True)
            }
        assert outcomes[False] == SENT
        assert outcomes[True].result is not Result.SENT
