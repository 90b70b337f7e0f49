"""What only Google Cloud Pub/Sub has: its attributes, ordering keys and statuses."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from grpc import StatusCode

from outbox_tasks.destinations.pubsub.publisher import trouble
from outbox_tasks.model import Result
from tests.contract.counterparts.pubsub import PROJECT, Counterpart
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, numbers, published, whole
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
        forged = {"ce-id": "1", "Content-Type": "2", "Goog": "4"}
        with closing(loaded(target.url_at(target.port).replace("%d", "%25d"))) as publisher:
            assert publisher.publish([replace(WHOLE, headers=WHOLE.headers | forged)]) == [SENT]
        [arrived] = target.raw()
        own = {"tenant": "t1", "content-type": "application/json", **{f"h_{n}": v for n, v in forged.items()}}
        assert dict(arrived.attributes) == own | whole("ce-", specversion="1.0", datacontenttype="application/json")
        assert (arrived.data, arrived.ordering_key) == (b'{"n": 0}', "k")
        assert [call["routed"] for call in target.calls()] == [f"projects/{PROJECT}/topics/{target.place}"]


class TestOrder:
    @pytest.mark.parametrize(("options", "calls"), [("", [("", 2), ("a", 1), ("b", 1)]), (UNORDERED, [("", 4)])])
    def test_each_key_has_a_request_of_its_own_unless_there_is_no_order(
        self, target: Counterpart, options: str, calls: list[tuple[str, int]]
    ) -> None:
        keys = ["a", "b", None, None]
        sent = [message(n, key=key) for n, key in enumerate(keys)]
        assert published(target, *sent, options=options) == [SENT] * 4
        assert sorted((call["key"], call["messages"]) for call in target.calls()) == calls
        assert {found.attributes.get("partitionkey") for found in target.received()} == {*keys}

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
