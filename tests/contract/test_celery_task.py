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


DEEP = "[" * 100_000 + "]" * 100_000


def task_message(**fields: object) -> str:
    """The envelope of a stored task, with some of its fields changed."""
    whole = {
        "content_type": "application/json", "content_encoding": "utf-8", "headers": {"task": "t", "id": "i"},
        "properties": {}, "exchange": "", "routing_key": "shop", "priority": 0, "mandatory": False, "declare": [],
        "expires": None,
    }  # fmt: skip
    return json.dumps({**whole, **fields})


ODD_TASKS = [
    "null", "", "{", "5", "[]", "{}", DEEP, f'{{"headers": {DEEP}}}', task_message(more=1),
    task_message(headers=None), task_message(properties=5), task_message(declare=5), task_message(declare=[5]),
    task_message(declare=[{"queue": 5}]), task_message(expires="soon"), task_message(priority="high"),
    task_message(routing_key=5), task_message(properties={"expiration": "soon"}),
    task_message(properties={"retry": True}), task_message(properties={"compression": "zlib"}),
    task_message(properties={"serializer": "pickle"}, content_type=""), task_message(content_encoding=None),
    task_message(content_type="application/x-python-serialize", content_encoding="binary"),
    task_message(content_type="application/x-yaml"), task_message(headers={"compression": "odd"}),
    task_message(headers={"compression": 5}), task_message(confirm="yes"), task_message(confirm=None),
]  # fmt: skip


def test_each_odd_task_is_dead_by_itself_and_its_neighbours_are_sent(target: Counterpart) -> None:
    odd = [message(n, headers={"celery-message": text}) for n, text in enumerate(ODD_TASKS)]
    odd.append(message(98, payload=DEEP.encode()))
    with closing(loaded(target.url(target.place))) as publisher:
        outcomes = publisher.publish([message(99), *odd, message(100)])
    assert [outcomes[0], outcomes[-1]] == [SENT, SENT]
    assert [o.code for o in outcomes[1:-1]] == ["bad_task"] * len(ODD_TASKS) + ["not_json"]
    assert set(results(outcomes[1:-1])) == {Result.DEAD}
    assert len(target.received()) == 2


@pytest.mark.parametrize(
    ("accept", "kind", "result"),
    [("", "application/x-python-serialize", Result.DEAD), ("&accept=json", "application/x-yaml", Result.DEAD),
     ("&accept=json,pickle", "application/x-python-serialize", Result.SENT),
     ("&accept=pickle", "application/json", Result.DEAD),
     ("&accept=application/x-mine", "application/x-mine", Result.SENT)],
)  # fmt: skip
def test_stored_tasks_are_of_the_types_that_the_destination_accepts(
    target: Counterpart, accept: str, kind: str, result: Result
) -> None:
    headers = {"celery-message": task_message(content_type=kind, routing_key=target.place)}
    with closing(loaded(target.url(target.place) + accept)) as publisher:
        assert results(publisher.publish([message(headers=headers)])) == [result]
    assert [raw["content-type"] for raw in target.raw()] == [kind] * (result is Result.SENT)


def test_a_messages_own_header_does_not_say_how_the_task_is_compressed(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        assert publisher.publish([message(headers={"compression": "zlib", "tenant": "t1"})]) == [SENT]
    [raw] = target.raw()
    assert "compression" not in raw["headers"]
    assert raw["headers"]["tenant"] == "t1"


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
