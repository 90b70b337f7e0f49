"""A stored Celery task: it comes back as it was, and a row that anybody may have written can't do harm."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from kombu import Exchange, Queue, binding
from kombu.utils.json import dumps

from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.celery_message import TaskMessage, accepted, describe
from outbox_tasks.wire.cloudevents import UNEXPRESSED

QUEUE = Queue("shop", Exchange("shop", "topic"), routing_key="a.#", queue_arguments={"x-queue-type": "quorum"})
BOUND = Queue("b", bindings=[binding(Exchange("shop", "topic"), "b.#"), binding(routing_key="c.#")])
FIELDS: dict[str, Any] = {
    "content_type": "application/json", "content_encoding": "utf-8", "headers": {"task": "shop.mail", "id": "1"},
    "properties": {"correlation_id": "1", "delivery_mode": 2, "expiration": "5"}, "exchange": "", "routing_key": "shop",
    "priority": 3, "mandatory": True, "declare": describe([QUEUE, BOUND]), "expires": datetime(2030, 1, 1, tzinfo=UTC),
    "confirm": True,
}  # fmt: skip


def task(**fields: Any) -> TaskMessage:
    return TaskMessage(**{**FIELDS, **fields})


def test_all_that_a_task_has_comes_back() -> None:
    whole = task(headers={**FIELDS["headers"], "at": datetime(2030, 1, 1, tzinfo=UTC), "of": UUID(int=5), "raw": b"x"})
    assert TaskMessage.loads(whole.dumps()) == whole
    queue, bound = whole.entities()
    assert queue == QUEUE
    assert {(each.exchange and each.exchange.type, each.routing_key) for each in bound.bindings} == {
        ("topic", "b.#"), (None, "c.#"),
    }  # fmt: skip
    assert (queue.queue_arguments, queue.exchange.type) == (QUEUE.queue_arguments, "topic")


@pytest.mark.parametrize(
    "odd",
    [
        {"headers": None}, {"declare": {}}, {"content_type": "application/x-python-serialize"}, {"routing_key": 5},
        {"expires": "soon"}, {"confirm": None}, {"headers": {"compression": "application/x-evil"}},
        {"properties": {"serializer": "pickle"}}, {"properties": {"retry": True}}, {"nobody": "knows it"},
    ],
    ids=str,
)  # fmt: skip
def test_an_envelope_that_is_none_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(UNEXPRESSED):
        TaskMessage.loads(dumps({**FIELDS, **odd}), accepted(Destination(url="celery://")))


def test_what_a_destination_accepts_is_in_its_url() -> None:
    pickled = task(content_type="application/x-python-serialize")
    assert pickled.refusal(accepted(Destination(url="celery://"))) is not None
    assert pickled.refusal(accepted(Destination(url="celery://?accept=json,pickle"))) is None
    assert task().refusal(accepted(Destination(url="celery://?accept=pickle"))) is not None
    mine = accepted(Destination(url="celery://?accept=application/x-mine"))
    assert task(content_type="application/x-mine").refusal(mine) is None
    assert task(headers={"compression": "application/x-gzip"}).refusal(accepted(Destination(url="celery://"))) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, None),
        ({"headers": {}}, "no task"),
        ({"headers": {"task": "shop.mail", "id": 1}}, "no task"),
        ({"headers": {**FIELDS["headers"], "CC": ["x"]}}, "the header CC"),
        ({"headers": {**FIELDS["headers"], "bcc": ["x"]}}, "the header bcc"),
        ({"exchange": "celeryev"}, "celeryev is for events"),
        ({"exchange": "x.pidbox"}, r"x\.pidbox is for events"),
        ({"declare": describe([Queue("x.reply.celery.pidbox")])}, "is for events"),
        ({"routing_key": "elsewhere"}, "goes to elsewhere, and its destination's queue is shop, b"),
        ({"exchange": "elsewhere"}, "goes to elsewhere"),
        ({"declare": describe([QUEUE, Queue("elsewhere")])}, "its destination's queue is"),
        ({"routing_key": "b", "declare": []}, None),
    ],
)  # fmt: skip
def test_a_task_goes_only_where_its_destination_leads(fields: dict[str, Any], says: str | None) -> None:
    found = task(**fields).misdirection(b"{}", ["shop", "b"])
    assert (found is None) if says is None else (found and re.search(says, found)), found


def test_of_the_first_protocol_the_task_is_in_the_body() -> None:
    body = json.dumps({"task": "shop.mail", "id": "1"}).encode()
    assert task(headers={}).misdirection(body, []) is None
    assert task(headers={"compression": "application/x-gzip"}).misdirection(body, []) is not None
    assert task(headers={}).misdirection(b"[]", []) is not None
