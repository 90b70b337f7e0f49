"""What the NATS publisher puts into a message, and what only JetStream has: deduplication, limits, permissions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from nats.js import JetStreamContext

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.model import Result
from tests.contract.counterparts.nats_jetstream import Counterpart
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, numbers, published, results, whole


def limited(target: Counterpart, **limits: Any) -> str:
    """The URL of the test's stream, with other limits than usual."""
    url = target.url(target.place)

    async def limit(server: JetStreamContext) -> None:
        config = (await server.stream_info(target.place)).config
        await server.update_stream(config.evolve(**limits))

    target.ask(limit)
    return url


def test_writes_the_headers_of_the_binding(target: Counterpart) -> None:
    own = {"tenant": "ü 1", "Nats-Rollup": "all", "CE-id": "x", "content-type": "y"}
    sent = replace(
        WHOLE, key="käse und 100 %", content_type="application/json; charset=utf-8", headers=WHOLE.headers | own
    )
    assert published(target, sent) == [SENT]
    [arrived] = target.raw()
    more = {
        "specversion": "1.0",
        "datacontenttype": "application/json;%20charset=utf-8",
        "partitionkey": "k%C3%A4se%20und%20100%20%25",
    }
    prefixed = {name if name == "tenant" else f"h_{name}": value for name, value in own.items()}
    assert arrived.subject == target.place
    assert arrived.headers == whole("ce-", **more) | {"Nats-Msg-Id": sent.id} | prefixed


def test_a_repetition_is_dropped_by_the_stream(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        assert publisher.publish([message(0), message(1), message(0)]) == [SENT] * 3
        assert publisher.publish([message(1)]) == [SENT]
    assert numbers(target) == [0, 1]


def test_the_event_type_can_be_a_part_of_the_subject(target: Counterpart) -> None:
    outcomes = published(
        target, message(0), message(1, event_type="order created"), message(2, event_type="x"), options="?by_type=true"
    )
    assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
    assert outcomes[1].code == "bad_subject"
    assert [arrived.subject for arrived in target.raw()] == [f"{target.place}.order.created", f"{target.place}.x"]


@pytest.mark.parametrize(
    "headers",
    [{"": "x"}, {"ü": "x"}, {"a": "x\r\nNats-Rollup: all"}, {"tracestate": "\ud800"}],
)
def test_what_is_no_header_of_nats_is_dead(target: Counterpart, headers: dict[str, str]) -> None:
    outcomes = published(target, message(0), message(1, headers=headers), message(2))
    assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
    assert outcomes[1].code == "bad_headers"


def test_headers_larger_than_a_stream_can_store_are_dead(target: Counterpart) -> None:
    outcomes = published(target, message(0), message(1, headers={"a": "x" * 65_500}), message(2))
    assert brief(outcomes) == [(Result.SENT, None), (Result.DEAD, "bad_headers"), (Result.SENT, None)]


def test_headers_count_against_the_servers_limit(target: Counterpart) -> None:
    """The client counts the payload only, and the server closes the connection, on the neighbours too."""
    large = message(1, payload=b"x" * (Counterpart.largest - 100))
    with closing(loaded(target.url(target.place))) as publisher:
        outcomes = publisher.publish([message(0), large, message(2)])
        assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
        assert outcomes[1].code == "too_large"
        size = int(str(outcomes[1].error).split()[0])
        fits = message(3, payload=b"x" * (Counterpart.largest - 100 - (size - Counterpart.largest)))
        assert publisher.publish([fits, message(4)]) == [SENT, SENT]


def test_a_message_larger_than_the_stream_takes_is_dead(target: Counterpart) -> None:
    with closing(loaded(limited(target, max_msg_size=1000))) as publisher:
        outcomes = publisher.publish([message(0), message(1, payload=b"x" * 1000), message(2)])
    assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
    assert outcomes[1].code == "too_large"


def test_a_stream_that_is_full_is_out_of_order(target: Counterpart) -> None:
    with closing(loaded(limited(target, max_msgs=1, discard="new"))) as publisher:
        outcomes = publisher.publish([message(0), message(1), message(2)])
    assert [(o.result, o.code) for o in outcomes[1:]] == [(Result.OUTAGE, "full")] * 2
    assert outcomes[0] == SENT


def test_one_host_of_several_is_enough(target: Counterpart) -> None:
    url = target.url(target.place).replace("@", f"@{LOOPBACK}:1,", 1)
    for _ in range(5):
        with closing(loaded(url)) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
