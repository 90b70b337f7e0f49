"""What the Redis Stream publisher writes down on the wire, read back raw."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from contextlib import closing, suppress
from typing import Any

import pytest
import redis

from lab.proxy import Proxy
from outbox_tasks.destinations import load
from outbox_tasks.model import Result
from tests.conftest import eventually
from tests.contract.conftest import Running
from tests.contract.counterparts import celery_task, redis_queue
from tests.contract.counterparts.redis_stream import Counterpart
from tests.contract.messages import SENT, configured, loaded, message, numbers, results


def client(target: Counterpart) -> redis.Redis:
    return redis.Redis.from_url(target.server.url)


def entries(target: Counterpart) -> list[dict[str, bytes]]:
    found: Any = client(target).xrange(target.place)
    return [{name.decode(): value for name, value in fields.items()} for _, fields in found]


def test_writes_the_fields_of_the_contract(target: Counterpart) -> None:
    sent = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "tenant": "t1"})
    with closing(loaded(target.url(target.place))) as publisher:
        publisher.publish([sent])
    assert entries(target) == [
        {
            "ce_id": sent.id.encode(),
            "ce_type": b"order.created",
            "ce_source": b"/shop",
            "ce_time": b"2030-01-02T03:04:05.000678+00:00",
            "ce_subject": b"a",
            "ce_partitionkey": b"k",
            "ce_traceparent": b"00-a-b-01",
            "h_tenant": b"t1",
            "content_type": b"application/json",
            "data": b'{"n": 0}',
        }
    ]


def test_a_key_that_is_no_stream_is_an_outage(target: Counterpart) -> None:
    client(target).set(target.place, "a string")
    with closing(loaded(target.url(target.place))) as publisher:
        outcomes = publisher.publish([message(0), message(1)])
    assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "wrong_type")}


@pytest.mark.parametrize("kind", [Counterpart, redis_queue.Counterpart, celery_task.Counterpart])
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


def test_a_server_that_is_full_is_out_of_order(target: Counterpart) -> None:
    with closing(loaded(target.url(target.place))) as publisher:
        client(target).config_set("maxmemory", "1")
        try:
            outcomes = publisher.publish([message(0), message(1)])
        finally:
            client(target).config_set("maxmemory", "0")
        assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "oom")}
        assert publisher.publish([message(2)]) == [SENT]


def test_trims_the_stream_when_told_to(target: Counterpart) -> None:
    publisher = load(*configured(f"{target.url(target.place)}?maxlen=100"))
    with closing(publisher):
        for start in range(0, 1000, 100):
            publisher.publish([message(start + n) for n in range(100)])
    assert 100 <= len(entries(target)) < 500


class Late(socketserver.BaseRequestHandler):
    """Passes on what Redis says. While `slow` is set: its first answer in 0.6 s, the rest when it is `released`."""

    port: int
    slow: threading.Event
    released: threading.Event

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as server:
            threading.Thread(target=self._answer, args=(server,), daemon=True).start()
            with suppress(OSError):
                while data := self.request.recv(65536):
                    server.sendall(data)

    def _answer(self, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                lines = data.splitlines(keepends=True)
                if self.slow.is_set():
                    self.slow.clear()
                    for line in lines[:2]:
                        time.sleep(0.3)
                        self.request.sendall(line)
                    self.released.wait(30)
                    lines = lines[2:]
                self.request.sendall(b"".join(lines))


def test_answers_that_came_too_late_are_not_those_of_the_next_messages(target: Counterpart) -> None:
    """Those would count as sent, and be lost."""
    slow, released = threading.Event(), threading.Event()
    handler = type("Handler", (Late,), {"port": target.server.port, "slow": slow, "released": released})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        with closing(loaded(target.url_at(proxy.server_address[1]), send_timeout=1)) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
            slow.set()
            outcomes = publisher.publish([message(n) for n in range(1, 6)])
            assert results(outcomes) == [Result.OUTAGE] * 5
            eventually(lambda: len(target.received()) == 6)
            client(target).delete(target.place)
            client(target).set(target.place, "no stream")
            threading.Timer(0.2, released.set).start()
            assert [outcome.code for outcome in publisher.publish([message(6)])] == ["wrong_type"]
        proxy.shutdown()


class TestSeveralMessagesOfOneKey:
    def test_are_appended_in_order_whatever_is_between_them(self, target: Counterpart) -> None:
        keys = ["a", "b", "a", None, "a", "b", None]
        messages = [message(n, key=key, headers={"tenant": "t1"}) for n, key in enumerate(keys)]
        with closing(loaded(f"{target.url(target.place)}?maxlen=1000")) as publisher:
            assert publisher.publish(messages) == [SENT] * len(keys)
        assert numbers(target) == list(range(len(keys)))

    def test_end_at_the_first_refusal(self, target: Counterpart) -> None:
        last = 2**64 - 1
        client(target).xadd(target.place, {"room": "for one more"}, id=f"{last}-{last - 1}")
        with closing(loaded(target.url(target.place))) as publisher:
            outcomes = publisher.publish([message(n, key="a") for n in range(4)])
        assert results(outcomes) == [Result.SENT, Result.RETRY, Result.BEHIND, Result.BEHIND]
        assert "exhausted" in str(outcomes[1].error)

    def test_end_at_one_that_can_not_be_sent(self, target: Counterpart) -> None:
        odd: Any = {"n": 5}
        messages = [message(0, key="a"), message(1, key="a", headers=odd), message(2, key="a"), message(3, key="b")]
        with closing(loaded(target.url(target.place))) as publisher:
            outcomes = publisher.publish(messages)
        assert results(outcomes) == [Result.SENT, Result.DEAD, Result.BEHIND, Result.SENT]
        assert numbers(target) == [0, 3]

    def test_may_all_have_arrived_if_the_answer_is_lost(self, target: Counterpart) -> None:
        with (
            Proxy(int(target.server.url.rpartition(":")[2].partition("/")[0])) as proxy,
            closing(loaded(target.url_at(proxy.port), send_timeout=1)) as publisher,
        ):
            assert publisher.publish([message(0)]) == [SENT]
            proxy.mute()
            outcomes = publisher.publish([message(n, key="a") for n in (1, 2)])
        assert results(outcomes) == [Result.OUTAGE] * 2

    @pytest.mark.parametrize(("trouble", "code"), [("full", "oom"), ("no stream", "wrong_type")])
    def test_wait_for_the_first_if_the_server_is_out_of_order(
        self, target: Counterpart, trouble: str, code: str
    ) -> None:
        if trouble == "no stream":
            client(target).set(target.place, "a string")
        with closing(loaded(target.url(target.place))) as publisher:
            client(target).config_set("maxmemory", "1" if trouble == "full" else "0")
            try:
                outcomes = publisher.publish([message(n, key="a") for n in range(3)])
            finally:
                client(target).config_set("maxmemory", "0")
        assert results(outcomes) == [Result.OUTAGE, Result.BEHIND, Result.BEHIND]
        assert outcomes[0].code == code

    def test_go_one_by_one_where_scripts_are_not_allowed(self, target: Counterpart) -> None:
        client(target).acl_setuser("limited", enabled=True, reset=True, passwords=["+p"], keys=["*"],
                                   commands=["+xadd", "+select", "+client", "+ping", "+hello"])  # fmt: skip
        url = target.url(target.place).replace("://", "://limited:p@")
        messages = [message(n, key=key) for n, key in enumerate(["a", "a", "b", "a", None])]
        with closing(loaded(url)) as publisher:
            assert publisher.publish(messages) == [SENT] * 5
            client(target).acl_setuser("limited", commands=["-xadd"])
            refused = publisher.publish(messages)
        assert numbers(target) == list(range(5))
        assert results(refused) == [Result.OUTAGE, Result.BEHIND, Result.OUTAGE, Result.BEHIND, Result.OUTAGE]
        assert refused[0].code == "unauthorized"

    def test_with_more_headers_than_a_script_takes_go_one_by_one(self, target: Counterpart) -> None:
        many = {f"name-{n}": "text" for n in range(1_500)}
        messages = [message(0, key="a", headers=many), message(1, key="a", headers=many), message(2)]
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish(messages) == [SENT] * 3
        assert numbers(target) == [0, 1, 2]
