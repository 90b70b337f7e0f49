"""What the MQTT publisher puts into a message, and what only MQTT has: reason codes, limits, retained messages."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
from paho.mqtt import subscribe
from paho.mqtt.enums import MQTTProtocolVersion

from outbox_tasks.destinations.mqtt import link
from outbox_tasks.destinations.mqtt.publisher import FORBIDDEN
from outbox_tasks.model import Result
from tests.contract.counterparts.mqtt import Counterpart
from tests.contract.messages import SENT, WHOLE, loaded, message, numbers, published, results, settled, whole


def test_writes_the_user_properties_of_the_binding(target: Counterpart) -> None:
    assert published(target, replace(WHOLE, headers={"traceparent": "00-a-b-01", "id": "t1"})) == [SENT]
    [arrived] = target.raw()
    assert arrived.properties is not None
    assert dict(arrived.properties.UserProperty) == whole("", specversion="1.0") | {"h_id": "t1"}
    assert arrived.properties.ContentType == "application/json"
    assert (arrived.payload, arrived.qos, arrived.retain) == (b'{"n": 0}', 1, False)


def test_the_last_message_is_retained_if_wished(target: Counterpart) -> None:
    """Somebody gets it who subscribes afterwards."""
    assert published(target, message(0), message(1), options="?retain=true") == [SENT, SENT]
    arrived: Any = subscribe.simple(
        target.place, qos=1, port=target.port, hostname="127.0.0.1", protocol=MQTTProtocolVersion.MQTTv5,
        auth={"username": "teller", "password": "r:ght"}, retained=True,
    )  # fmt: skip
    assert arrived.payload == b'{"n": 1}'


@pytest.mark.parametrize("text", ["a\tb", "\U0010ffff", "\ud800", "ü" * 32_768])
def test_a_text_that_mqtt_has_no_place_for_is_dead(target: Counterpart, text: str) -> None:
    """mosquitto would close the connection, on the neighbours too."""
    outcomes = published(target, message(0), message(1, headers={"a": text}), message(2, key=text), message(3))
    assert results(outcomes) == [Result.SENT, Result.DEAD, Result.DEAD, Result.SENT]
    assert {outcomes[1].code, outcomes[2].code} == {"bad_headers"}
    assert numbers(target) == [0, 3]


def test_every_character_that_is_not_forbidden_arrives(target: Counterpart) -> None:
    """The list of the forbidden is complete: the server closes the connection for none of the others."""
    allowed = [text for text in map(chr, range(0x110000)) if not FORBIDDEN.search(text)]
    allowed.remove("\ufeff")  # paho can't read it: the reader's fault, not the server's
    texts = ["".join(allowed[start : start + 15_000]) for start in range(0, len(allowed), 15_000)]
    outcomes = published(target, *(message(n, headers={"text": text}) for n, text in enumerate(texts)))
    assert outcomes == [SENT] * len(texts)
    assert [arrived.headers["text"] for arrived in target.received()] == texts


@pytest.mark.parametrize(("size", "header", "codes"), [
    (Counterpart.largest + 1, 1, {"too_large", "connection"}), (Counterpart.packet, 1, {"too_large"}),
    (Counterpart.packet - 50_000, 60_000, {"too_large"}),
], ids=["refused", "not even sent", "not even sent with its headers"])  # fmt: skip
def test_what_the_server_refuses_for_its_size_does_no_harm(
    target: Counterpart, size: int, header: int, codes: set[str]
) -> None:
    """mosquitto closes the connection over a message that it refuses, and we may not come to read the refusal. What it
    has not acknowledged is not published again by ourselves."""
    with closing(loaded(target.url(target.place))) as publisher:
        for _ in range(3):
            large = message(payload=b"x" * size, headers={"a": "x" * header})
            outcomes = settled(publisher, *map(message, range(30)), large, message(30))
            assert [*outcomes[:30], outcomes[31]] == [SENT] * 31
            assert outcomes[30].code in codes
    assert set(numbers(target)) == set(range(31))


def test_more_than_the_system_takes_at_once_is_written_when_there_is_room(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher, ExitStack() as frozen:
        assert publisher.publish([message(0)]) == [SENT]
        frozen.enter_context(target.frozen())
        threading.Timer(1, frozen.close).start()
        assert publisher.publish([message(n, payload=b"x" * 200_000) for n in range(60)]) == [SENT] * 60


def test_a_topic_that_nobody_has_subscribed_to_is_none_the_worse(target: Counterpart) -> None:
    with closing(loaded(target.url_of("nobody/listens"))) as publisher:
        assert publisher.publish([message(0), message(1)]) == [SENT, SENT]


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    target: Counterpart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pings, the server ends it."""
    publisher: Any = loaded(target.url(target.place))
    with closing(publisher):
        for idle_seconds, used_again in ((30.0, True), (0.0, False)):
            monkeypatch.setattr(link, "IDLE_SECONDS", idle_seconds)
            before = publisher._link
            assert publisher.publish([message(0)]) == [SENT]
            assert before is None or (publisher._link is before) is used_again
