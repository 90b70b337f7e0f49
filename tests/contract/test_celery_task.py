"""What the Celery publisher makes of messages, read back raw."""

from __future__ import annotations

import base64
import json
from contextlib import closing

import pytest
import redis

from outbox_tasks.destinations import load
from outbox_tasks.model import Result
from tests.contract.counterparts.celery_task import Counterpart
from tests.contract.messages import SENT, configured, loaded, message, results, sent_by


def test_sends_a_task_that_celery_takes(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        publisher.publish([message(3)])
    [raw] = target.raw()
    headers = raw["headers"]
    assert headers["task"] == "shop.on_event"
    assert headers["id"] == headers["ce_id"] == message(3).id
    assert raw["properties"]["correlation_id"] == message(3).id
    assert (raw["content-type"], raw["content-encoding"]) == ("application/json", "utf-8")
    args, kwargs, _ = json.loads(base64.b64decode(raw["body"]))
    assert (args, kwargs) == ([{"n": 3}], {})


@pytest.mark.parametrize("payload", [b"\xff\x00", b"", b"{oops", "é".encode("latin-1")])
def test_a_payload_that_is_no_json_is_dead_and_its_neighbours_are_sent(target: Counterpart, payload: bytes) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        outcomes = publisher.publish([message(0), message(1, payload=payload), message(2)])
    assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
    assert outcomes[1].code == "not_json"
    assert len(target.received()) == 2


def test_without_a_task_the_event_type_is_its_name(target: Counterpart) -> None:
    url = target.url(target.place).replace("task=shop.on_event&", "")
    with closing(load(*configured(url))) as publisher:
        assert publisher.publish([message(event_type="shop.tasks.receipt")]) == [SENT]
    assert [raw["headers"]["task"] for raw in target.raw()] == ["shop.tasks.receipt"]


def test_without_a_broker_the_relays_own_takes_it(target: Counterpart) -> None:
    url = f"celery://?queue={target.place}"
    with closing(load(*configured(url, broker_url=target.server.url))) as publisher:
        assert publisher.publish([message()]) == [SENT]
    assert len(target.raw()) == 1


def test_a_queue_of_another_type_never_counts_as_sent(target: Counterpart) -> None:
    with redis.Redis.from_url(target.server.url) as client:
        client.set(target.place, "a string")
    with closing(loaded(target.url(target.place))) as publisher:
        assert Result.SENT not in results(sent_by(publisher, message(0), message(1)))


def test_headers_of_the_messages_do_not_replace_celerys_own(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        publisher.publish([message(headers={"task": "evil.task", "id": "other", "tenant": "t1"})])
    [raw] = target.raw()
    assert (raw["headers"]["task"], raw["headers"]["id"]) == ("shop.on_event", message().id)
    assert raw["headers"]["tenant"] == "t1"
