"""What the kombu publisher does beyond what every publisher does: RabbitMQ's confirms, and what is stored where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from cloudevents.core.bindings import rabbitmq as binding
from kombu import Connection, Exchange, Queue

from outbox_tasks.model import Result
from tests.conftest import eventually
from tests.contract.conftest import Running
from tests.contract.counterparts import rabbitmq
from tests.contract.counterparts.valkey import RedisQueue
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, numbers, settled, whole, within

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rabbit(running: Running) -> rabbitmq.Counterpart:
    return running(rabbitmq.Counterpart)


@pytest.fixture
def valkey(running: Running) -> RedisQueue:
    return running(RedisQueue)


@pytest.fixture
def name() -> str:
    return f"outbox-{uuid4().hex[:8]}"


@contextmanager
def channel_of(rabbit: rabbitmq.Counterpart) -> Iterator[Any]:
    with closing(rabbit.connection()) as connection:
        yield connection.channel()


class TestRabbit:
    def test_writes_what_the_binding_of_cloudevents_says(self, rabbit: rabbitmq.Counterpart) -> None:
        own = {"CE-Type": "false", "ce-dataschema": "urn:orders"}
        with closing(loaded(rabbit.new_place())) as publisher:
            assert publisher.publish([replace(WHOLE, headers=WHOLE.headers | own)]) == [SENT]
        [arrived] = rabbit.raw()
        assert {n: v for n, v in arrived.properties.items() if n != "application_headers"} == {
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "message_id": message().id,
            "timestamp": 1893553445,
            "delivery_mode": 2,
        }
        attributes = whole("ce-", specversion="1.0", dataschema="urn:orders")
        assert (arrived.body, arrived.headers) == (b'{"n": 0}', attributes | {"tenant": "t1"})

    def test_a_refused_message_is_the_only_one_that_is_dead(self, rabbit: rabbitmq.Counterpart) -> None:
        """The broker closes the channel over it, and takes what came before it all the same: what arrives twice was not
        sent twice at once, but says why."""
        messages = [message(n, headers={"CC": "no list"} if n in (3, 6) else {}) for n in range(10)]
        with within(20), closing(loaded(rabbit.new_place(), send_timeout=60)) as publisher:
            outcomes = settled(publisher, *messages)
            assert {n: (o.result, o.code) for n, o in enumerate(outcomes) if o != SENT} == dict.fromkeys(
                (3, 6), (Result.DEAD, "refused")
            )
            assert publisher.publish([message(10)]) == [SENT]
        assert set(numbers(rabbit)) == set(range(11)) - {3, 6}

    def test_what_amqp_cannot_express_is_dead(self, rabbit: rabbitmq.Counterpart) -> None:
        odd: list[dict[str, Any]] = [
            {"headers": {"n" * 256: "x"}}, {"headers": {"n": "x" * 200_000}}, {"content_type": "text/" + "x" * 256}
        ]  # fmt: skip
        with closing(loaded(rabbit.new_place())) as publisher:
            bad = [message(n, **fields) for n, fields in enumerate(odd, 1)]
            outcomes = publisher.publish([message(0), *bad, message(4)])
        assert brief(outcomes) == [(Result.SENT, None), *[(Result.DEAD, "bad_headers")] * 3, (Result.SENT, None)]
        assert numbers(rabbit) == [0, 4]

    def test_only_the_unroutable_messages_of_a_batch_are_held_back(
        self, rabbit: rabbitmq.Counterpart, name: str
    ) -> None:
        rabbit.new_place()
        with channel_of(rabbit) as channel:
            channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
            channel.queue_declare(rabbit.place, durable=True, auto_delete=False)
            channel.queue_bind(rabbit.place, name, "order.*")
        types = ["order.created", "nobody.listens", "order.paid"]
        messages = [message(n, event_type=kind) for n, kind in enumerate(types)]
        with closing(loaded(f"{rabbit.broker}?exchange={name}")) as publisher:
            outcomes = publisher.publish(messages)
            assert [(o.result, o.code) for o in outcomes] == [
                (Result.SENT, None), (Result.RETRY, "unroutable"), (Result.SENT, None)
            ]  # fmt: skip
            with channel_of(rabbit) as channel:
                channel.queue_bind(rabbit.place, name, "nobody.*")
            assert publisher.publish([messages[1]]) == [SENT], "it came back once, and now it has a queue"
        assert numbers(rabbit) == [0, 2, 1]

    def test_a_full_queue_is_tried_again(self, rabbit: rabbitmq.Counterpart, name: str) -> None:
        rabbit.declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        with closing(loaded(f"{rabbit.broker}?queue={name}")) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
            outcomes = publisher.publish([message(1), message(2)])
        assert {(o.result, o.code) for o in outcomes} == {(Result.RETRY, "nacked")}

    def test_one_that_is_short_of_memory_says_so_until_it_is_no_longer(self, rabbit: rabbitmq.Counterpart) -> None:
        alarm = "{resource_limit, memory, node()}"
        publisher: Any = loaded(rabbit.new_place(), send_timeout=20)
        with closing(publisher):
            ends = threading.Timer(0.5, rabbit.evaluate, [f"rabbit_alarm:clear_alarm({alarm})"])
            rabbit.evaluate(f"rabbit_alarm:set_alarm({{{alarm}, []}})")
            try:
                with closing(loaded(rabbit.url(rabbit.place), send_timeout=1)) as hasty:
                    assert brief(hasty.publish([message(0)])) == [(Result.OUTAGE, "blocked")]
            finally:
                ends.start()
            assert publisher.publish([message(1)]) == [SENT]
            assert not publisher._sender.get()._link.blocked

    def test_declares_a_queue_when_told_to_and_one_that_is_otherwise_kills_nothing(
        self, rabbit: rabbitmq.Counterpart, name: str
    ) -> None:
        rabbit.declare(f"{name}-full", arguments={"x-max-length": 5})
        for queue, expected in ((name, (Result.SENT, None)), (f"{name}-full", (Result.OUTAGE, "refused"))):
            with closing(loaded(f"{rabbit.broker}?queue={queue}&declare=true")) as publisher:
                assert brief(publisher.publish([message(0)])) == [expected]
        rabbit.declare(name)  # as it is declared by others


class TestRedis:
    def test_any_consumer_of_kombu_reads_it(self, valkey: RedisQueue, name: str) -> None:
        with closing(loaded(f"{valkey.server.url}/{name}")) as publisher:
            assert publisher.publish([message(1, headers={"tenant": "t1", "compression": "zlib"})]) == [SENT]
        with Connection(valkey.server.url) as connection, connection.SimpleQueue(name) as queue:
            arrived = queue.get(timeout=5)
            arrived.ack()
        assert arrived.payload == {"n": 1}
        assert (arrived.headers["tenant"], arrived.headers["h_compression"]) == ("t1", "zlib")
        assert arrived.properties["message_id"] == message(1).id
        event = binding.from_binary_event(binding.RabbitMQMessage(arrived.headers, arrived.content_type, arrived.body))
        assert (event.get_id(), event.get_data()) == (message(1).id, {"n": 1})

    def test_fanout_reaches_every_subscriber(self, valkey: RedisQueue, name: str) -> None:
        found: list[Any] = []
        with Connection(valkey.server.url) as connection:
            queue = Queue(f"{name}-mine", Exchange(name, "fanout"), exclusive=True)
            consumer = connection.Consumer([queue], callbacks=[lambda body, arrived: found.append(body)], no_ack=True)
            client = redis.Redis.from_url(valkey.server.url)
            with consumer, client, closing(loaded(f"{valkey.server.url}?fanout={name}")) as publisher:

                def subscribed() -> bool:
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.1)
                    return bool(client.pubsub_numpat() or client.pubsub_channels())

                eventually(subscribed)
                assert publisher.publish([message(1), message(2)]) == [SENT] * 2
                while len(found) < 2:
                    connection.drain_events(timeout=5)
        assert found == [{"n": 1}, {"n": 2}]

    def test_a_key_that_is_no_list_is_an_outage(self, valkey: RedisQueue, name: str) -> None:
        with redis.Redis.from_url(valkey.server.url) as client:
            client.set(name, "a string")
        with closing(loaded(f"{valkey.server.url}/{name}")) as publisher:
            outcomes = publisher.publish([message(0), message(1)])
        assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "wrong_type")}
        assert not any("LPUSH" in str(o.error) for o in outcomes), "the message is quoted"

    def test_transport_options_are_kombus(self, valkey: RedisQueue, name: str) -> None:
        options = {"transport_options": {"global_keyprefix": "shop:"}}
        with closing(loaded(f"{valkey.server.url}/{name}", destination=options)) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
        with redis.Redis.from_url(valkey.server.url) as client:
            assert client.llen(f"shop:{name}") == 1
