"""What only Google Cloud Pub/Sub has: its attributes, ordering keys and statuses."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from grpc import StatusCode

from outbox_tasks.destinations.pubsub.publisher import trouble
from outbox_tasks.model import Result
from tests.contract.counterparts.pubsub import PROJECT, Counterpart
from tests.contract.messages import SENT, brief, loaded, message, numbers, published, sent_by
from tests.contract.servers import pubsub_server

OK = (Result.SENT, None)
UNORDERED = "&ordering=none"


def outcomes(target: Counterpart, *types: str) -> list[tuple[Result, str | None]]:
    """What becomes of messages with these event types."""
    return brief(published(target, *(message(n, event_type=t) for n, t in enumerate(types)), options=UNORDERED))


class TestTheWire:
    def test_the_attributes_of_the_binding_with_the_headers_beside_them(self, target: Counterpart) -> None:
        """A header takes no name that means something. Google's front ends need the topic as a header."""
        target.place += "+b~c%d"
        own = {"traceparent": "00-a-b-01", "X-Tenant": "t1", "ce-id": "1", "Content-Type": "2", "Goog": "4"}
        sent = message(key="k", aggregate_id="a", headers=own)
        target.url(target.place)
        with closing(loaded(target.url_at(target.port).replace("%d", "%25d"))) as publisher:
            assert publisher.publish([sent]) == [SENT]
        [arrived] = target.raw()
        assert dict(arrived.attributes) == {
            "ce-specversion": "1.0", "ce-id": sent.id, "ce-type": "order.created", "ce-source": "/shop",
            "ce-time": "2030-01-02T03:04:05.000678+00:00", "ce-subject": "a", "ce-partitionkey": "k",
            "ce-traceparent": "00-a-b-01", "ce-datacontenttype": "application/json",
            "content-type": "application/json", "X-Tenant": "t1", "h_ce-id": "1", "h_Content-Type": "2", "h_Goog": "4",
        }  # fmt: skip
        assert (arrived.data, arrived.ordering_key) == (b'{"n": 0}', "k")
        assert [call["routed"] for call in target.calls()] == [f"projects/{PROJECT}/topics/{target.place}"]

    @pytest.mark.parametrize("wrong", [{"headers": {"a": "\ud800"}}, {"key": "\ud800"}])
    def test_a_text_that_is_not_unicode_is_dead(self, target: Counterpart, wrong: Any) -> None:
        assert brief(published(target, message(0), message(1, **wrong))) == [OK, (Result.DEAD, "not_unicode")]


class TestOrder:
    def test_each_key_has_a_request_of_its_own(self, target: Counterpart) -> None:
        keys = ["a", "b", None, "c", None]
        assert published(target, *(message(n, key=key) for n, key in enumerate(keys))) == [SENT] * 5
        found = sorted((call["key"], call["messages"]) for call in target.calls())
        assert found == [("", 2), ("a", 1), ("b", 1), ("c", 1)]

    def test_without_ordering_all_go_together(self, target: Counterpart) -> None:
        sent = [message(n, key=key) for n, key in enumerate(["a", "b", None])]
        assert published(target, *sent, options=UNORDERED) == [SENT] * 3
        assert [(call["key"], call["messages"]) for call in target.calls()] == [("", 3)]
        assert [found.attributes.get("partitionkey") for found in target.received()] == ["a", "b", None]

    def test_the_keys_do_not_wait_for_each_other(self, target: Counterpart) -> None:
        started = time.monotonic()
        assert published(target, *(message(n, key=f"{n}", event_type="slow") for n in range(8))) == [SENT] * 8
        assert time.monotonic() - started < 4 * pubsub_server.SLOW  # one after the other they take twice as long


def test_a_time_limit_leaves_nothing_under_way(target: Counterpart, monkeypatch: pytest.MonkeyPatch) -> None:
    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    publisher: Any = loaded(target.url(target.place))
    with closing(publisher):
        assert publisher.publish([message(0)]) == [SENT]
        monkeypatch.setattr(type(publisher), "_send", strike)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish([message(1)])
        monkeypatch.undo()
        assert publisher._channel.made is None, "it would go on with the requests"
        assert publisher.publish([message(2)]) == [SENT]


def test_the_emulators_variable_goes_before_google(target: Counterpart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{target.port}")
    url = f"pubsub://{PROJECT}/{target.place}?endpoint=nowhere.invalid&credentials=/nowhere"
    with closing(loaded(url)) as publisher:
        assert publisher.publish([message()]) == [SENT]
    assert numbers(target) == [0]


class TestTheStatusOfARequest:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("UNAUTHENTICATED", (Result.OUTAGE, "unauthorized")),
            ("FAILED_PRECONDITION", (Result.OUTAGE, "failed_precondition")),
            ("RESOURCE_EXHAUSTED", (Result.RETRY, "throttled")),
            ("CANCELLED", (Result.RETRY, "cancelled")),
        ],
    )
    def test_holds_for_all_of_its_messages(self, target: Counterpart, status: str, expected: Any) -> None:
        assert outcomes(target, "a", f"abort.{status}", "b") == [expected] * 3
        assert [call["messages"] for call in target.calls()] == [3]

    def test_that_one_message_has_caused_is_for_that_one(self, target: Counterpart) -> None:
        types = ["a"] * 7 + ["abort.INVALID_ARGUMENT"] + ["b"] * 8
        assert outcomes(target, *types) == [OK] * 7 + [(Result.DEAD, "invalid_argument")] + [OK] * 8
        assert sorted(call["messages"] for call in target.calls()) == [1, 1, 2, 2, 4, 4, 8, 8, 16]
        assert sorted(numbers(target)) == [*range(7), *range(8, 16)]

    def test_an_answer_without_ids_is_no_success(self, target: Counterpart) -> None:
        assert outcomes(target, "a", "miscounted") == [(Result.RETRY, "unconfirmed")] * 2

    @pytest.mark.parametrize(
        ("status", "details", "result", "code"),
        [
            ("INVALID_ARGUMENT", "The value for request_size is too large. You passed 10000001 in the request, but the "
             "maximum value is 10000000.", Result.DEAD, "too_large"),
            ("INVALID_ARGUMENT", "Request payload size exceeds the limit: 10485760 bytes.", Result.DEAD, "too_large"),
            ("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Regional publisher throughput, kB' and limit "
             "'Regional publisher throughput, kB per minute per region'", Result.RETRY, "throttled"),
            ("INVALID_ARGUMENT", "Invalid [topics] name: (name=projects/p/topics/x)", Result.OUTAGE, "unroutable"),
            ("UNAVAILABLE", "Getting metadata from plugin failed with error: ('invalid_grant: Invalid JWT Signature.', "
             "{'error': 'invalid_grant', 'assertion': 'hunter2'})", Result.OUTAGE, "unauthorized"),
        ],
    )  # fmt: skip
    def test_by_the_words_that_google_has_for_it(self, status: str, details: str, result: Result, code: str) -> None:
        outcome = trouble(StatusCode[status], details)
        assert (outcome.result, outcome.code) == (result, code)
        assert "hunter2" not in str(outcome.error)

    def test_only_a_request_that_was_lost_ends_the_connection(self, target: Counterpart) -> None:
        publisher: Any = loaded(target.url(target.place))
        with closing(publisher):
            publisher.publish([message(0)])
            before = publisher._channel.made
            sent_by(publisher, message(1, event_type="abort.RESOURCE_EXHAUSTED"))
            assert publisher._channel.made is before
            sent_by(publisher, message(1, event_type="abort.UNAVAILABLE"))
            assert publisher.publish([message(2)]) == [SENT]
            assert publisher._channel.made is not before
