"""What the Redis Stream publisher writes down on the wire, read back raw."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import redis

from outbox_tasks.destinations import load
from outbox_tasks.model import Result
from tests.contract.conftest import Running
from tests.contract.counterparts import celery_task, redis_queue
from tests.contract.counterparts.redis_stream import Counterpart
from tests.contract.messages import SENT, configured, loaded, message, numbers
from tests.proxy import Proxy


def client(target: Counterpart) -> redis.Redis:
    return redis.Redis.from_url(target.server.url)


def entries(target: Counterpart) -> list[dict[str, bytes]]:
    found: Any = client(target).xrange(target.place)
    return [{name.decode(): value for name, value in fields.items()} for _, fields in found]


def test_writes_the_fields_of_the_contract(target: Counterpart) -> None:
    sent = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "tenant": "t1"})
    with closing(loaded(target.url(target.place))) as publisher:
        publisher.publish([sent])
    assert entries(target) == [
        {
            "ce_id": sent.id.encode(),
            "ce_type": b"order.created",
            "ce_source": b"/shop",
            "ce_time": b"2030-01-02T03:04:05.000678+00:00",
            "ce_subject": b"a",
            "ce_partitionkey": b"k",
            "ce_traceparent": b"00-a-b-01",
            "h_tenant": b"t1",
            "content_type": b"application/json",
            "data": b'{"n": 0}',
        }
    ]


@pytest.mark.parametrize("payload", [b"", bytes(range(256)), b"x" * 1_000_000], ids=["empty", "all", "large"])
def test_carries_any_bytes(target: Counterpart, payload: bytes) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        assert publisher.publish([message(payload=payload, content_type="application/x-thing")]) == [SENT]
    [entry] = entries(target)
    assert (entry["data"], entry["content_type"]) == (payload, b"application/x-thing")


def test_a_key_that_is_no_stream_is_an_outage(target: Counterpart) -> None:
    client(target).set(target.place, "a string")
    with closing(loaded(target.url(target.place))) as publisher:
        outcomes = publisher.publish([message(0), message(1)])
    assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "wrong_type")}


@pytest.mark.parametrize("kind", [Counterpart, redis_queue.Counterpart, celery_task.Counterpart])
def test_a_command_whose_answer_is_lost_is_not_given_again(kind: Any, running: Running) -> None:
    """The client would, by itself, if it were let: then the message arrives twice, and its row does not say why."""
    target = running(kind)
    target.new_place()
    options = {} if kind is Counterpart else {"transport_options": {"retry_on_timeout": True}}
    with (
        Proxy(int(target.server.url.rpartition(":")[2].partition("/")[0])) as proxy,
        closing(loaded(target.url_at(proxy.port), send_timeout=1, destination=options)) as publisher,
    ):
        assert publisher.publish([message(0)]) == [SENT]
        proxy.mute()
        [outcome] = publisher.publish([message(1)])
    assert outcome.result is Result.OUTAGE
    assert numbers(target).count(1) == 1


def test_a_server_that_is_full_is_out_of_order(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        client(target).config_set("maxmemory", "1")
        try:
            outcomes = publisher.publish([message(0), message(1)])
        finally:
            client(target).config_set("maxmemory", "0")
        assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "oom")}
        assert publisher.publish([message(2)]) == [SENT]


@pytest.mark.parametrize(
    ("path", "stream"), [("", "orders"), ("/0", "orders"), ("/events", "events"), ("/3/a/b", "a/b")]
)
def test_takes_the_stream_from_the_path_or_the_destinations_name(path: str, stream: str) -> None:
    publisher: Any = load(*configured(f"redis+stream://localhost:1{path}"))
    assert publisher.stream == stream


def test_trims_the_stream_when_told_to(target: Counterpart) -> None:
    publisher = load(*configured(f"{target.url(target.place)}?maxlen=100"))
    with closing(publisher):
        for start in range(0, 1000, 100):
            publisher.publish([message(start + n) for n in range(100)])
    assert 100 <= len(entries(target)) < 500
