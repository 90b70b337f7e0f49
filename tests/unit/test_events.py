"""The CloudEvents attributes of a message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage
from outbox_tasks.wire.cloudevents import attributes, own_headers, trace_headers

PLAIN: dict[str, Any] = {
    "id": "0190a5d2-7c4e-7000-8000-000000000001",
    "event_type": "order.created",
    "destination": "orders",
    "key": None,
    "payload": b"{}",
    "content_type": "application/json",
    "headers": {},
    "aggregate_type": None,
    "aggregate_id": None,
    "created_at": datetime(2030, 1, 2, 3, 4, 5, 678, UTC),
    "attempts": 1,
}


def message(**fields: Any) -> LeasedMessage:
    return LeasedMessage(**{**PLAIN, **fields})


def test_a_plain_message_has_the_required_attributes_and_its_time() -> None:
    assert attributes(message(), "/shop") == {
        "id": "0190a5d2-7c4e-7000-8000-000000000001",
        "type": "order.created",
        "source": "/shop",
        "time": "2030-01-02T03:04:05.000678+00:00",
    }


def test_key_aggregate_event_and_trace_context_are_attributes() -> None:
    trace = {"traceparent": "00-a-b-01", "tracestate": "vendor=1", "eventid": "0190a5d2-7c4e-7000-8000-000000000009"}
    found = attributes(message(key="order:42", aggregate_id="42", headers={**trace, "tenant": "t1"},
                               payload=b"", dataref="s3://bucket/1"), "/shop")  # fmt: skip
    assert found.items() >= {"partitionkey": "order:42", "subject": "42", "dataref": "s3://bucket/1", **trace}.items()
    assert "tenant" not in found


def test_its_own_headers_are_the_others() -> None:
    trace = {"traceparent": "00-a-b-01", "tracestate": "vendor=1"}
    written = message(headers={**trace, "eventid": "1", "tenant": "t1"})
    assert (own_headers(written), trace_headers(written)) == ({"tenant": "t1"}, trace)


@pytest.mark.parametrize("headers", [["a"], "text", 5, {"n": 5}, {"n": None}, {"n": {"deep": "er"}}, None, [], "", 0])
@pytest.mark.parametrize("read", [lambda m: attributes(m, "/shop"), own_headers])
def test_rubbish_headers_are_a_permanent_error(headers: Any, read: Any) -> None:
    with pytest.raises(PermanentError) as caught:
        read(message(headers=headers))
    assert caught.value.code == "bad_headers"
