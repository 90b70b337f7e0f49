"""What the MQTT publisher puts into a message, and what only MQTT has: reason codes, limits, retained messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from paho.mqtt import subscribe
from paho.mqtt.enums import MQTTProtocolVersion

from outbox_tasks.destinations import load
from outbox_tasks.destinations.mqtt import FORBIDDEN
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import Outcome, Result
from tests.contract.counterparts.mqtt import Counterpart, Mosquitto
from tests.contract.messages import configured, loaded, message, numbers, results

SENT = Outcome.sent()

pytestmark = pytest.mark.skipif(Counterpart.missing() is not None, reason=str(Counterpart.missing()))


@pytest.fixture(scope="module")
def server() -> Iterator[Counterpart]:
    made = Counterpart()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def topic(server: Counterpart) -> Counterpart:
    server.new_place()
    return server


def test_writes_the_user_properties_of_the_binding(topic: Counterpart) -> None:
    sent = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "id": "t1"})
    with closing(loaded(topic.url(topic.place))) as publisher:
        assert publisher.publish([sent]) == [SENT]
    [arrived] = topic.raw()
    assert arrived.properties is not None
    assert arrived.properties.UserProperty == [
        ("specversion", "1.0"),
        ("id", sent.id),
        ("type", "order.created"),
        ("source", "/shop"),
        ("time", "2030-01-02T03:04:05.000678+00:00"),
        ("subject", "a"),
        ("partitionkey", "k"),
        ("traceparent", "00-a-b-01"),
        ("h_id", "t1"),
    ]
    assert arrived.properties.ContentType == "application/json"
    assert (arrived.payload, arrived.qos, arrived.retain) == (b'{"n": 0}', 1, False)


def test_carries_all_of_unicode(topic: Counterpart) -> None:
    odd = "naïve 😀 \u2028 \ue000"
    with closing(loaded(topic.url(topic.place))) as publisher:
        assert publisher.publish([message(key=odd, headers={odd: odd})]) == [SENT]
    [arrived] = topic.received()
    assert (arrived.attributes["partitionkey"], arrived.headers) == (odd, {odd: odd})


@pytest.mark.parametrize("text", ["a\tb", "\x7f", "\x9f", "\ufffe", "\U0010ffff", "\ud800", "ü" * 32_768])
def test_a_text_that_mqtt_has_no_place_for_is_dead(topic: Counterpart, text: str) -> None:
    """mosquitto would close the connection, on the neighbours too."""
    with closing(loaded(topic.url(topic.place))) as publisher:
        outcomes = publisher.publish([message(0), message(1, headers={"a": text}), message(2, key=text), message(3)])
    assert results(outcomes) == [Result.SENT, Result.DEAD, Result.DEAD, Result.SENT]
    assert {outcomes[1].code, outcomes[2].code} == {"bad_headers"}
    assert numbers(topic) == [0, 3]


def test_every_character_that_is_not_forbidden_arrives(topic: Counterpart) -> None:
    """The list of the forbidden is complete: the server closes the connection for none of the others."""
    allowed = [text for text in map(chr, range(0x110000)) if not FORBIDDEN.search(text)]
    allowed.remove("\ufeff")  # paho can't read it: the reader's fault, not the server's
    texts = ["".join(allowed[start : start + 15_000]) for start in range(0, len(allowed), 15_000)]
    with closing(loaded(topic.url(topic.place))) as publisher:
        outcomes = publisher.publish([message(n, headers={"text": text}) for n, text in enumerate(texts)])
    assert outcomes == [SENT] * len(texts)
    assert [arrived.headers["text"] for arrived in topic.received()] == texts


@pytest.mark.parametrize("size", [Mosquitto.largest + 1, Mosquitto.packet], ids=["refused", "not even sent"])
def test_what_the_server_refuses_for_its_size_does_no_harm(topic: Counterpart, size: int) -> None:
    """mosquitto closes the connection over a message that it refuses: the neighbours go again."""
    with closing(loaded(topic.url(topic.place))) as publisher:
        for _ in range(5):
            outcomes = publisher.publish([*map(message, range(30)), message(payload=b"x" * size), message(30)])
            assert results(outcomes) == [*[Result.SENT] * 30, Result.DEAD, Result.SENT]
            assert outcomes[30].code == "too_large"
    assert numbers(topic) == [*range(31)] * 5


def test_a_topic_that_we_may_not_write_to_is_an_outage(topic: Counterpart) -> None:
    with closing(loaded(f"{topic.server.url}/private/orders")) as publisher:
        outcomes = publisher.publish([message(0), message(1)])
    assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "unauthorized")}


def test_a_topic_that_nobody_has_subscribed_to_is_none_the_worse(topic: Counterpart) -> None:
    with closing(loaded(f"{topic.server.url}/nobody/listens")) as publisher:
        assert publisher.publish([message(0), message(1)]) == [SENT, SENT]


def test_a_server_that_closed_the_idle_connection_is_found_again_at_once(topic: Counterpart) -> None:
    """Nothing is lost, and nothing counts as a failure."""
    with closing(loaded(topic.url(topic.place))) as publisher:
        assert publisher.publish([message(0)]) == [SENT]
        topic.stop()
        topic.start()
        topic.url(topic.place)
        assert publisher.publish([message(1)]) == [SENT]


@pytest.mark.parametrize(
    ("path", "name"), [("", "orders"), ("/events", "events"), ("/shop/a%20b", "shop/a b"), ("//x", "/x")]
)
def test_takes_the_topic_from_the_path_or_the_destinations_name(path: str, name: str) -> None:
    publisher: Any = load(*configured(f"mqtt://localhost{path}"))
    assert publisher.topic == name


@pytest.mark.parametrize(
    "url",
    [
        "mqtt:///orders", "mqtt://u:secret@h/a/#", "mqtt://u:secret@h/+/a", "mqtt://u:secret@h/a?qos=2",
        "mqtt://u:secret@h/a?retain=yes", "mqtt://u:secret@h:port/a", "mqtt://u:secret@h/a%00",
    ],
)  # fmt: skip
def test_a_url_that_can_not_work_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"destinations\.orders\.url") as caught:
        load(*configured(url))
    assert "secret" not in str(caught.value)


def test_the_last_message_is_retained_if_wished(topic: Counterpart) -> None:
    with closing(loaded(f"{topic.url(topic.place)}?retain=true")) as publisher:
        assert publisher.publish([message(0), message(1)]) == [SENT, SENT]
    assert retained(topic) == [b'{"n": 1}']


def retained(topic: Counterpart) -> list[bytes]:
    """What somebody gets who subscribes now."""
    found: Any = subscribe.simple(
        topic.place, qos=1, port=topic.server.port, hostname="127.0.0.1", protocol=MQTTProtocolVersion.MQTTv5,
        auth={"username": "teller", "password": "r:ght"}, retained=True,
    )  # fmt: skip
    return [found.payload]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho drops the socket unclosed
def test_tls_is_never_left_out(topic: Counterpart) -> None:
    """Against a server that has none, nothing is sent, and nothing is told."""
    with closing(loaded(topic.url(topic.place).replace("mqtt://", "mqtts://"), send_timeout=2)) as publisher:
        [outcome] = publisher.publish([message(0)])
    assert outcome.result is Result.OUTAGE
    assert outcome.code in ("tls", "timeout", "connection")
    assert numbers(topic) == []
