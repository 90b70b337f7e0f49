"""What the Redis Stream publisher writes down on the wire, read back raw."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import redis

from lab.proxy import Proxy
from outbox_tasks.model import Result
from tests.contract.conftest import Running
from tests.contract.counterparts.valkey import CeleryTask, RedisQueue
from tests.contract.counterparts.valkey import RedisStream as Counterpart
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, numbers, published, results, whole


def client(target: Counterpart) -> redis.Redis:
    return redis.Redis.from_url(target.server.url)


def test_writes_the_fields_of_the_contract(target: Counterpart) -> None:
    assert published(target, WHOLE) == [SENT]
    fields = whole("ce_") | {"h_tenant": "t1", "content_type": "application/json", "data": '{"n": 0}'}
    assert target.raw() == [{name: value.encode() for name, value in fields.items()}]


@pytest.mark.parametrize("kind", [Counterpart, RedisQueue, CeleryTask])
def test_a_command_whose_answer_is_lost_is_not_given_again(kind: Any, running: Running) -> None:
    """The client would, by itself, if it were let: then the message arrives twice, and its row does not say why."""
    target = running(kind)
    target.new_place()
    options = {} if kind is Counterpart else {"transport_options": {"retry_on_timeout": True}}
    with (
        Proxy(int(target.server.url.rpartition(":")[2].partition("/")[0])) as proxy,
        closing(loaded(target.url_at(proxy.port), send_timeout=1, destination=options)) as publisher,
    ):
        assert publisher.publish([message(0)]) == [SENT]
        proxy.mute()
        [outcome] = publisher.publish([message(1)])
    assert outcome.result is Result.OUTAGE
    assert numbers(target).count(1) == 1


def test_trims_the_stream_when_told_to(target: Counterpart) -> None:
    with closing(loaded(f"{target.url(target.place)}?maxlen=100")) as publisher:
        for start in range(0, 1000, 100):
            publisher.publish([message(start + n) for n in range(100)])
    assert 100 <= len(target.raw()) < 500


class TestSeveralMessagesOfOneKey:
    def test_are_appended_in_order_whatever_is_between_them(self, target: Counterpart) -> None:
        keys = ["a", "b", "a", None, "a", "b", None]
        messages = [message(n, key=key, headers={"tenant": "t1"}) for n, key in enumerate(keys)]
        assert published(target, *messages, options="?maxlen=1000") == [SENT] * len(keys)
        assert numbers(target) == list(range(len(keys)))

    def test_end_at_the_first_refusal(self, target: Counterpart) -> None:
        last = 2**64 - 1
        client(target).xadd(target.place, {"room": "for one more"}, id=f"{last}-{last - 1}")
        outcomes = published(target, *(message(n, key="a") for n in range(4)))
        assert results(outcomes) == [Result.SENT, Result.RETRY, Result.BEHIND, Result.BEHIND]
        assert "exhausted" in str(outcomes[1].error)

    def test_end_at_one_that_can_not_be_sent(self, target: Counterpart) -> None:
        odd: Any = {"n": 5}
        messages = [message(0, key="a"), message(1, key="a", headers=odd), message(2, key="a"), message(3, key="b")]
        outcomes = published(target, *messages)
        assert results(outcomes) == [Result.SENT, Result.DEAD, Result.BEHIND, Result.SENT]
        assert numbers(target) == [0, 3]

    def test_wait_for_the_first_if_the_server_is_out_of_order(self, target: Counterpart) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            for key in ("a", None):
                client(target).config_set("maxmemory", "1")
                try:
                    outcomes = publisher.publish([message(n, key=key) for n in range(3)])
                finally:
                    client(target).config_set("maxmemory", "0")
                behind = (Result.OUTAGE, "oom") if key is None else (Result.BEHIND, None)
                assert brief(outcomes) == [(Result.OUTAGE, "oom"), behind, behind]
            assert publisher.publish([message(0)]) == [SENT]

    def test_are_not_sent_where_scripts_are_not_allowed(self, target: Counterpart) -> None:
        client(target).acl_setuser("limited", enabled=True, reset=True, passwords=["+p"], keys=["*"],
                                   commands=["+xadd", "+select", "+client", "+ping", "+hello"])  # fmt: skip
        with closing(loaded(target.url(target.place).replace("://", "://limited:p@"))) as publisher:
            outcomes = publisher.publish([message(n, key="a") for n in range(2)])
            assert brief(outcomes) == [(Result.OUTAGE, "unauthorized")] * 2
            assert publisher.publish([message(2, key="a"), message(3, key="b")]) == [SENT] * 2

    def test_may_have_many_headers_but_not_too_many(self, target: Counterpart) -> None:
        fits, does_not = ({f"name-{n}": "text" for n in range(count)} for count in (993, 994))
        messages = [message(0, key="a", headers=fits), message(1, key="a"), message(2, key="b", headers=does_not)]
        outcomes = published(target, *messages)
        assert brief(outcomes) == [(Result.SENT, None), (Result.SENT, None), (Result.DEAD, "bad_headers")]
