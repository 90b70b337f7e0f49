"""What only webhooks have: statuses, signatures, addresses that are refused, and endpoints that behave badly."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.destinations.common.public_internet import is_public
from outbox_tasks.destinations.http import network
from outbox_tasks.destinations.http.options import read
from outbox_tasks.destinations.http.publisher import BODY_SECONDS
from outbox_tasks.model import LeasedMessage, Result
from tests.contract.counterparts.http_events import Counterpart
from tests.contract.messages import (
    SENT,
    WHOLE,
    brief,
    configured,
    connected,
    loaded,
    message,
    numbers,
    published,
    results,
    sent_by,
    sent_in_order,
    whole,
    within,
)
from tests.contract.test_every_publisher import Ended, struck

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"


def opened(target: Counterpart, more: str = "", **values: Any) -> Any:
    return closing(loaded(target.url(target.place) + more, **values))


def answered(number: int = 0, **answer: Any) -> LeasedMessage:
    """A message that says what it wants for an answer."""
    return message(number, headers={"x-answer": json.dumps(answer)})


def post(target: Counterpart) -> tuple[dict[str, str], dict[str, Any]]:
    """The only request that has arrived: its headers, and all of it."""
    [found] = target.raw()
    return dict(found["headers"]), found


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], list[str]]]:
    """What asks for the addresses of a name."""
    known: dict[str, Callable[[], list[str]]] = {}
    real = socket.getaddrinfo

    def resolved(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host not in known:
            return real(host, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]()]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return known


class TestTheRequest:
    def test_is_a_cloud_event_in_binary_mode(self, target: Counterpart) -> None:
        with opened(target, "&a=1&outbox_concurrency=2&b=%2F") as publisher:
            assert publisher.publish([replace(WHOLE, aggregate_id='Euro € "😀" 100%\r\n~')]) == [SENT]
        headers, request = post(target)
        subject = "Euro%20%E2%82%AC%20%22%F0%9F%98%80%22%20100%25%0D%0A~"
        assert headers == {
            "host": f"127.0.0.1:{target.port}",
            "user-agent": "outbox-tasks",
            "accept-encoding": "identity",
            "idempotency-key": WHOLE.id,
            **whole("ce-", specversion="1.0", subject=subject),
            **WHOLE.headers,
            "content-type": "application/json",
            "content-length": "8",
        }
        assert request["path"] == f"/hooks/{target.place}?a=1&b=%2F"

    def test_keeps_the_names_that_are_not_the_messages(self, target: Counterpart) -> None:
        names = ["Host", "CE-Id", "Content-Length", "Content-Type", "authorization", "Transfer-Encoding", "Connection",
                 "webhook-signature", "Idempotency-Key", "Expect", "Upgrade"]  # fmt: skip
        others = dict.fromkeys(names, "forged")
        with opened(target) as publisher:
            assert publisher.publish([message(headers={**others, "tenant": "t1"})]) == [SENT]
        [arrived] = target.received()
        assert "forged" not in post(target)[0].values()
        assert arrived.headers == {"tenant": "t1"}

    @pytest.mark.parametrize(
        ("login", "option", "sent"),
        [
            ("", "&outbox_bearer=to+k%3Den", "Bearer to+k=en"),
            ("teller:ri%40ght@", "", "Basic " + base64.b64encode(b"teller:ri@ght").decode()),
        ],
    )
    def test_has_the_credentials_of_the_url(self, target: Counterpart, login: str, option: str, sent: str) -> None:
        url = target.url(target.place).replace("://", f"://{login}") + option + f"&outbox_secret={SECRET}"
        with closing(loaded(url)) as publisher:
            assert publisher.publish([message()]) == [SENT]
        headers, request = post(target)
        assert headers["authorization"] == sent
        assert headers["webhook-signature"].count("v1,") == 1
        assert request["path"] == f"/hooks/{target.place}"

    def test_has_no_token_that_http_can_not_carry(self, target: Counterpart, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("to\nken")
        with opened(target, destination={"password": {"file": str(tmp_path / "token")}}) as publisher:
            [outcome] = sent_by(publisher, message())
        assert outcome.result is Result.OUTAGE
        assert "ken" not in (outcome.error or "").replace("token", "")


class TestTheSignature:
    def test_is_that_of_the_specification(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "time", lambda: 1614265330.9)
        options = read(configured(f"https://shop.example/?outbox_secret={OTHER_SECRET}&outbox_secret={SECRET}")[0])
        signature = options.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
        assert signature[:2] == [
            (b"webhook-id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"), (b"webhook-timestamp", b"1614265330"),
        ]  # fmt: skip
        assert signature[2][0] == b"webhook-signature"
        assert signature[2][1].endswith(b" v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), "each secret signs"


class TestTheAnswer:
    def test_has_a_meaning(self, target: Counterpart) -> None:
        meanings = {
            204: (Result.SENT, None), 299: (Result.SENT, None), 301: (Result.OUTAGE, "redirected"),
            400: (Result.DEAD, "http_400"), 404: (Result.RETRY, "unroutable"), 405: (Result.OUTAGE, "unroutable"),
            413: (Result.DEAD, "too_large"), 429: (Result.RETRY, "http_429"), 503: (Result.OUTAGE, "http_503"),
        }  # fmt: skip
        away = {"location": f"http://127.0.0.1:{target.port}/hooks/elsewhere"}
        bodies = {status: "" if status == 204 else "because" for status in meanings}
        wanted = [answered(status, status=status, headers=away, body=body) for status, body in bodies.items()]
        outcomes = published(target, *wanted, message(1))
        assert brief(outcomes) == [*meanings.values(), (Result.SENT, None)]
        assert [o.error for o in outcomes if o != SENT] == [f"HTTP {n} because" for n in meanings if n > 299]

    def test_may_ask_for_patience(self, target: Counterpart) -> None:
        in_ten_minutes = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
        values = ["7", "9" * 21, "-5", "soon", in_ten_minutes, "Fri, 31 Dec 9999 23:59:59 GMT"]
        wanted = [answered(n, status=429 + 74 * (n % 2), headers={"Retry-After": v}) for n, v in enumerate(values)]
        seconds, huge, negative, rubbish, date, far = (o.retry_after or 0.0 for o in published(target, *wanted))
        assert (seconds, negative, rubbish) == (7, 0, 0)
        assert 500 < date <= 600
        assert min(huge, far) > 86400

    def test_is_quoted_without_secrets_and_in_part(self, target: Counterpart) -> None:
        more = f"&token=abcd%2Fefgh&outbox_secret={SECRET}&outbox_bearer=bearer-token"
        body = (
            f"\0 abcd/efgh {target.place} {SECRET}\n\nbearer-token hooks/{target.place}?token=abcd%2Fefgh x" + "é" * 500
        )
        with opened(target, more) as publisher:
            [outcome, echo] = publisher.publish([answered(status=500, body=body), answered(status=500)])
        assert outcome.error.startswith("HTTP 500 *** *** *** *** ***?*** xé")
        assert len(outcome.error) == 200
        assert echo.error == "HTTP 500 you sent /***?*** with Bearer ***"
        login = target.url(target.place).replace("://", "://teller:s3cret@")
        with closing(loaded(login)) as publisher:
            [echo] = publisher.publish([answered(status=500)])
        assert echo.error == "HTTP 500 you sent /*** with Basic ***"


class TestBadBehaviour:
    @pytest.mark.parametrize(
        ("body_is", "status", "result"),
        [("endless", 200, Result.SENT), ("dripping", 500, Result.RETRY), ("cut", 200, Result.SENT),
         ("none", 200, Result.OUTAGE)],
    )  # fmt: skip
    def test_after_the_status_changes_nothing_and_without_a_status_it_is_an_outage(
        self, target: Counterpart, body_is: str, status: int, result: Result
    ) -> None:
        with opened(target, "&outbox_concurrency=2", send_timeout=11) as publisher:
            with within(BODY_SECONDS):
                outcomes = publisher.publish([answered(0, status=status, body="why", body_is=body_is), message(1)])
            assert results(outcomes) == [result, Result.SENT]
            assert publisher.publish([message(2)]) == [SENT]

    def test_is_no_outage_of_its_neighbours_when_the_time_was_short(self, target: Counterpart) -> None:
        with opened(target, "&outbox_concurrency=1", send_timeout=2) as publisher:
            connected(publisher)
            outcomes = publisher.publish([message(0), answered(1, after=20), message(2)])
            assert brief(outcomes) == [(Result.SENT, None), (Result.OUTAGE, "timeout"), (Result.BEHIND, None)]
            assert publisher.publish([message(3)]) == [SENT]

    def test_after_a_time_limit_nothing_more_is_sent(self, target: Counterpart) -> None:
        with opened(target, "&outbox_concurrency=1", send_timeout=20) as publisher:
            with struck(0.5, Ended):
                publisher.publish([answered(1, after=1), message(2)])
            assert publisher.publish([message(3)]) == [SENT]
        assert 2 not in numbers(target)


class TestKeys:
    def test_a_slow_send_holds_up_its_own_key_alone(self, target: Counterpart) -> None:
        slow = [answered(n, after=1.5 if n == 0 else 0) for n in range(2)]
        others = [message(n, key=f"key {n % 4}") for n in range(2, 26)]
        with opened(target, "&outbox_concurrency=3", send_timeout=60) as publisher:
            messages = [*(replace(one, key="slow") for one in slow), *others]
            assert sent_in_order(publisher, messages) == [SENT] * 26
        by_number = {json.loads(base64.b64decode(post["body"]))["n"]: post for post in target.raw()}
        assert all(by_number[n]["until"] < by_number[0]["until"] for n in range(2, 26))
        for key in range(4):
            theirs = [by_number[n] for n in range(2 + key, 26, 4)]
            moments = [post[end] for post in theirs for end in ("from", "until")]
            assert moments == sorted(moments)

    def test_one_without_an_answer_stops_its_own_key_alone(self, target: Counterpart) -> None:
        messages = [answered(0, after=20), *(message(n) for n in range(1, 4))]
        keyed = [replace(one, key="bad" if n < 2 else "good") for n, one in enumerate(messages)]
        with opened(target, "&outbox_concurrency=1", send_timeout=2) as publisher:
            connected(publisher)
            outcomes = publisher.publish(keyed)
        assert brief(outcomes) == [(Result.OUTAGE, "timeout"), (Result.BEHIND, None), *[(Result.SENT, None)] * 2]

    @pytest.mark.parametrize(
        ("status", "on_dead", "expected"),
        [
            (500, "skip", [Result.SENT, Result.RETRY, Result.BEHIND]),
            (422, "block", [Result.SENT, Result.DEAD, Result.BEHIND]),
            (422, "skip", [Result.SENT, Result.DEAD, Result.SENT]),
        ],
    )
    def test_a_failure_stops_its_own_key_alone(
        self, target: Counterpart, status: int, on_dead: str, expected: list[Result]
    ) -> None:
        messages = [message(0), answered(1, status=status), *(message(n) for n in range(2, 6))]
        keyed = [replace(one, key="bad" if n < 3 else "good") for n, one in enumerate(messages)]
        with opened(target, destination={"on_dead": on_dead}) as publisher:
            assert results(publisher.publish(keyed)) == [*expected, *[Result.SENT] * 3]

    def test_what_there_was_no_time_for_loses_no_attempt(self, target: Counterpart) -> None:
        keyed = [replace(answered(n, after=1), key="a") for n in range(20)]
        with opened(target, send_timeout=3, statement_timeout=0.5, queue_lease=5) as publisher:
            connected(publisher)
            found = results(publisher.publish(keyed))
        sent = found.count(Result.SENT)
        assert 0 < sent < 20
        assert found == [Result.SENT] * sent + [Result.BEHIND] * (20 - sent)
        assert numbers(target)[:sent] == list(range(sent))


class TestConnections:
    def test_as_many_at_a_time_as_allowed(self, target: Counterpart) -> None:
        messages = [answered(n, after=0.02) for n in range(16)]
        with opened(target, "&outbox_concurrency=4") as publisher:
            for _ in range(2):
                assert publisher.publish(messages) == [SENT] * 16
            assert len({request["peer"] for request in target.raw()}) == 4
            moments = sorted([(p["from"], 1) for p in target.raw()] + [(p["until"], -1) for p in target.raw()])
            assert max(sum(change for _, change in moments[: n + 1]) for n in range(len(moments))) == 4

    def test_end_with_their_thread_even_if_they_can_t_be_closed(
        self, target: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        close = network.Connections.aclose

        async def fail(connections: Any) -> None:
            await close(connections)
            raise ConnectionResetError

        monkeypatch.setattr(network.Connections, "aclose", fail)
        publisher = loaded(target.url(target.place))
        assert publisher.publish([message(0)]) == [SENT]
        with pytest.raises(ConnectionResetError):
            publisher.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "outbox webhooks"]


class TestAddresses:
    @pytest.mark.parametrize("host", ["localhost", "2130706433", "[::ffff:127.0.0.1]", "shop.example"])
    def test_of_private_networks_are_refused(self, host: str, names: dict[str, Any]) -> None:
        names["shop.example"] = lambda: ["10.1.2.3", "127.0.0.1"]
        with socket.create_server(("0.0.0.0", 0)) as listening:
            listening.settimeout(0.05)
            with closing(loaded(f"http://{host}:{listening.getsockname()[1]}/hooks")) as publisher:
                outcomes = publisher.publish([message(0), message(1)])
            with pytest.raises(TimeoutError):
                listening.accept()
        assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "private_address")}

    @pytest.mark.parametrize(
        "address",
        ["10.0.0.1", "127.0.0.1", "169.254.169.254", "100.100.100.200", "0.0.0.0", "192.0.0.192", "168.63.129.16",
         "224.0.0.1", "255.255.255.255", "::1", "fe80::1%1", "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1",
         "::127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "2001::1", "192.88.99.1", "3fff::1", "4000::1"],
    )  # fmt: skip
    def test_that_are_not_public(self, address: str) -> None:
        assert not is_public(address)
        assert all(map(is_public, ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")))

    def test_are_looked_up_once_and_the_allowed_one_is_connected_to(
        self, target: Counterpart, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name server that gives another address at the second question (DNS rebinding) is not asked twice."""
        monkeypatch.setattr(network, "is_public", lambda address: address.startswith("127"))
        answers = iter([["169.254.169.254", "127.0.0.2", "127.0.0.1"]])  # nobody listens at the second one
        names["shop.example"] = lambda: next(answers)  # a second question is an error
        url = f"http://shop.example:{target.port}/hooks/{target.place}"
        with closing(loaded(url)) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
        assert post(target)[0]["host"] == f"shop.example:{target.port}"

    def test_a_name_server_that_does_not_answer(self, names: dict[str, Any]) -> None:
        asked_long_enough = threading.Event()

        def answer() -> list[str]:
            asked_long_enough.wait(30)
            return []

        names["shop.example"] = answer
        with closing(loaded("https://shop.example/", send_timeout=0.5)) as publisher, within(0.5):
            outcomes = publisher.publish([message(n) for n in range(20)])
        asked_long_enough.set()
        assert {(o.result, o.code) for o in outcomes} == {(Result.OUTAGE, "timeout")}
