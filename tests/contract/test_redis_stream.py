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
from tests.contract.messages import SENT, brief, configured, loaded, message, numbers, published, results


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
        outcomes = published(target, *(message(n, key="a") for n in range(4)))
        assert results(outcomes) == [Result.SENT, Result.RETRY, Result.BEHIND, Result.BEHIND]
        assert "exhausted" in str(outcomes[1].error)

    def test_end_at_one_that_can_not_be_sent(self, target: Counterpart) -> None:
        odd: Any = {"n": 5}
        messages = [message(0, key="a"), message(1, key="a", headers=odd), message(2, key="a"), message(3, key="b")]
        with closing(loaded(target.url(target.place))) as publisher:
            outcomes = publisher.publish(messages)
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
