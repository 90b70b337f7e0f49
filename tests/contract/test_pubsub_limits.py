"""Google Cloud Pub/Sub: what its URLs may say, and what its requests may carry."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from outbox_tasks.destinations import load
from outbox_tasks.destinations.pubsub import message as pubsub_message
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from tests.contract.counterparts.pubsub import PROJECT, Counterpart
from tests.contract.messages import SENT, configured, loaded, message, numbers


def published(target: Counterpart, *messages: LeasedMessage) -> list[Outcome]:
    with closing(loaded(target.url(target.place))) as publisher:
        return publisher.publish(messages)


def written(one: LeasedMessage) -> int:
    """Bytes of a request that it takes."""
    return len(pubsub_message.entry(one, "/shop", ordered=True).body)


class TestLimits:
    """The server has Google's, so that what it takes is no more than they allow."""

    def test_requests_have_no_more_messages_than_they_may(self, target: Counterpart) -> None:
        assert published(target, *map(message, range(2500))) == [SENT] * 2500
        assert sorted(target.sizes()) == [500, 1000, 1000]  # side by side
        assert sorted(numbers(target)) == list(range(2500))

    @pytest.mark.parametrize(("more", "requests"), [(0, [2]), (1, [1, 1])])
    def test_requests_are_no_larger_than_they_may_be(self, target: Counterpart, more: int, requests: list[int]) -> None:
        publisher: Any = loaded(target.url(target.place))
        room = 10_000_000 - len(publisher._head) - 2 * (written(message(payload=b"x" * 5_000_000)) - 5_000_000)
        halves = [message(0, payload=b"x" * 5_000_000), message(1, payload=b"x" * (room - 5_000_000 + more))]
        with closing(publisher):
            assert publisher.publish(halves) == [SENT] * 2
        assert target.sizes() == requests

    @pytest.mark.parametrize(
        ("fits", "does_not"),
        [
            ({str(n): "" for n in range(93)}, {str(n): "" for n in range(94)}),
            ({"ä" * 128: "v"}, {"ä" * 128 + "a": "v"}),
            ({"a": "😀" * 256}, {"a": "😀" * 256 + "!"}),
            ({"a": ""}, {"": "a"}),
        ],
        ids=["count", "name", "value", "no name"],
    )
    def test_attributes(self, target: Counterpart, fits: dict[str, str], does_not: dict[str, str]) -> None:
        before, dead, sent = published(target, message(0), message(1, headers=does_not), message(2, headers=fits))
        assert (before, sent) == (SENT, SENT)
        assert (dead.result, dead.code) == (Result.DEAD, "bad_attributes")
        assert target.sizes() == [2]
        assert target.received()[1].headers == fits

    def test_the_longest_key(self, target: Counterpart) -> None:
        assert published(target, message(key="😀" * 255)) == [SENT]
        assert target.raw()[0].ordering_key == "😀" * 255


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "rule"),
        [
            ("pubsub:///orders", "pubsub://project/topic"),
            ("pubsub://user:hunter2@shop/orders", "?credentials="),
            ("pubsub://shop/orders#x", "pubsub://project/topic"),
            ("pubsub://shop/a/b", "a topic's name"),
            ("pubsub://shop/go", "a topic's name"),
            ("pubsub://shop/google-orders", "a topic's name"),
            ("pubsub://shop/orders?endpoint=https://x/hunter2", "endpoint must be"),
            ("pubsub://shop/orders?endpoint=", "endpoint must be"),
            ("pubsub://shop/orders?emulator=localhost", "emulator must be"),
            ("pubsub://shop/orders?emulator=localhost:8085&credentials=/hunter2", "neither endpoint nor"),
            ("pubsub://shop/orders?credentials=", "the path of"),
            ('pubsub://shop/orders?credentials={"private_key":"hunter2"}', "the path of"),
            (f"pubsub://shop/orders?credentials={'hunter2' * 200}", "the path of"),
        ],
    )
    def test_that_can_not_work_are_refused_without_showing_what_may_be_secret(self, url: str, rule: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load(*configured(url))
        assert caught.value.setting == "destinations.orders.url"
        assert rule in caught.value.rule
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "topic", "endpoint"),
        [
            ("pubsub://shop", "projects/shop/topics/orders", "pubsub.googleapis.com:443"),
            ("pubsub://shop/", "projects/shop/topics/orders", "pubsub.googleapis.com:443"),
            ("pubsub://example.com:shop/a%25b", "projects/example.com:shop/topics/a%b", "pubsub.googleapis.com:443"),
            ("pubsub://123/abc?endpoint=europe-west1-pubsub.googleapis.com", "projects/123/topics/abc",
             "europe-west1-pubsub.googleapis.com:443"),
            ("pubsub://shop/abc?endpoint=[::1]:8443", "projects/shop/topics/abc", "[::1]:8443"),
        ],
    )  # fmt: skip
    def test_what_they_say(self, url: str, topic: str, endpoint: str) -> None:
        publisher: Any = load(*configured(url))
        assert (publisher._address.topic, publisher._address.endpoint) == (topic, endpoint)

    def test_the_emulators_variable_goes_before_google(
        self, target: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{target.port}")
        url = f"pubsub://{PROJECT}/{target.place}?endpoint=nowhere.invalid&credentials=/nowhere"
        with closing(loaded(url)) as publisher:
            assert publisher.publish([message()]) == [SENT]
        assert numbers(target) == [0]
