"""What every publisher promises, against the real server of each: see `counterparts`."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from lab.proxy import Proxy
from outbox_tasks.destinations import Publisher
from outbox_tasks.local.ports import free_port
from outbox_tasks.model import LeasedMessage, Outcome, Result
from tests.conftest import eventually
from tests.contract.conftest import Running
from tests.contract.counterparts import Counterpart, every
from tests.contract.messages import (
    SENT,
    connected,
    loaded,
    message,
    numbers,
    results,
    sent_by,
    sent_in_order,
    settled,
    within,
)
from tests.contract.tasks import in_a_process, sent_in_forks

AGAIN = {Result.RETRY, Result.OUTAGE}
"""Not delivered, or not known to be, and worth another attempt."""


@pytest.fixture(scope="module", params=every(), ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, running: Running) -> Counterpart:
    """Each of them."""
    return running(request.param)


@contextmanager
def open_publisher(target: Counterpart, url: str | None = None, **values: Any) -> Iterator[Any]:
    """A publisher to the test's place. It leaves neither a socket nor a thread behind."""
    url = url or target.url(target.place)
    before = sockets(), threading.active_count()
    with closing(loaded(url, **values)) as publisher:
        yield publisher
    eventually(lambda: sockets() <= before[0] and threading.active_count() <= before[1], 20)


def sockets() -> int:
    """How many are open in this process."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(file.readlink()).startswith("socket:")
    return count


def refused(target: Counterpart, number: int) -> LeasedMessage:
    """A message that can't be sent, whose neighbours can."""
    return target.refused(message(number)) or message(number, headers={"n": 5})


class TooLong(Exception):
    """What Celery raises in the middle of anything when a task has run for too long."""


class Ended(BaseException):
    """What is raised in the middle of anything when the process is to end, or by gevent."""


@contextmanager
def struck(seconds: float | None, kind: type[BaseException]) -> Iterator[None]:
    """This is raised in what happens inside; None: nothing is. `Ended` ends it."""

    def strike(*_: object) -> None:
        raise kind

    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        with suppress(Ended):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def port_of(target: Counterpart) -> int:
    """Where the server listens."""
    url = unquote(target.url(target.place))
    [port] = {int(port) for port in re.findall(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+", url)}
    return port


class TestWhatArrives:
    def test_all_that_belongs_to_a_message_and_nothing_else(self, target: Counterpart) -> None:
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "v=1"}
        event = {"eventid": "01a2023d-ccc4-7708-9c92-89eb02d828b6"}
        odd = "naïve 😀 'q' \"d\" %s {x} \\ ."
        odd += "\t." if target.control_characters else ""
        sent = [
            message(0),
            message(1, key="order:42", aggregate_id="42", headers={"tenant": "t1", **trace}),
            message(2, headers={"tenant": "t1", **event}),
            message(3, key=odd, aggregate_id=odd, headers={"odd": odd}, payload='"naïve 😀 \u2028"'.encode()),
        ]
        with open_publisher(target) as publisher:
            assert publisher.publish(sent) == [SENT] * 4
        eventually(lambda: len(target.received()) == 4)
        arrived = {one.attributes["id"]: one for one in target.received()}
        plain = {"type": "order.created", "source": "/shop", "time": "2030-01-02T03:04:05.000678+00:00"}
        more = [
            {},
            {"subject": "42", "partitionkey": "order:42", **trace},
            event,
            {"subject": odd, "partitionkey": odd},
        ]
        own = [{}, {"tenant": "t1"}, {"tenant": "t1"}, {"odd": odd}]
        for one, attributes, headers in zip(sent, more, own, strict=True):
            assert arrived[one.id].attributes == {"id": one.id, **plain, **attributes}
            assert (arrived[one.id].headers, arrived[one.id].payload) == (headers, one.payload)
            assert arrived[one.id].content_type in ("application/json", None)

    def test_any_bytes_or_a_reference_to_them(self, target: Counterpart) -> None:
        if target.json_only:
            pytest.skip(f"{target.name} carries JSON, and the settings refuse a claim check")
        large = min(100_000, target.largest or 100_000)
        payloads = [b"", bytes(range(256)), b"x" * (large // 2)]
        kind = {"content_type": "application/x-thing"}
        sent = [message(n, payload=payload, **kind) for n, payload in enumerate(payloads)]
        sent.append(message(3, payload=b"", dataref="s3://bucket/prefix/a-b_c~1", **kind))
        with open_publisher(target) as publisher:
            assert publisher.publish(sent) == [SENT] * 4
        eventually(lambda: len(target.received()) == 4)
        arrived = {one.attributes["id"]: one for one in target.received()}
        for one in sent:
            assert (arrived[one.id].payload, arrived[one.id].content_type) == (one.payload, "application/x-thing")
            assert arrived[one.id].attributes.get("dataref") == one.dataref

    def test_as_many_at_once_as_its_batch_size_says_in_the_order_of_their_keys(self, target: Counterpart) -> None:
        with open_publisher(target, send_timeout=60) as publisher:  # a busy machine has time for all
            count = publisher.batch_size
            assert publisher.publish([message(n) for n in range(count)]) == [SENT] * count
            keyed = [message(n, key=f"key {n % 7}") for n in range(count, count + 100)]
            assert sent_in_order(publisher, keyed) == [SENT] * 100
        arrived = eventually(lambda: len(found := target.received()) >= count + 100 and found)
        by_key: dict[str | None, list[int]] = defaultdict(list)
        for one in arrived:
            by_key[one.attributes.get("partitionkey")].append(json.loads(one.payload)["n"])
        assert sorted(n for found in by_key.values() for n in found) == list(range(count + 100))
        if target.keeps_order:
            assert all(found == sorted(found) for key, found in by_key.items() if key is not None)


class TestOneBadMessage:
    def test_with_rubbish_for_headers_is_dead_and_with_odd_ones_its_own_affair(self, target: Counterpart) -> None:
        rubbish: list[Any] = [{"n": 5}, ["a"], "text", {"n": None}, None]
        odd: list[Any] = [{"a": "\ud800"}, {"\ud800": "a"}, {"compression": "odd"}, {"": ""}]
        with open_publisher(target) as publisher:
            bad = [message(n, headers=headers) for n, headers in enumerate([*rubbish, *odd], 1)]
            first, *outcomes, last = publisher.publish([message(0), *bad, message(99)])
        assert (first, last) == (SENT, SENT)
        assert {(o.result, o.code) for o in outcomes[: len(rubbish)]} == {(Result.DEAD, "bad_headers")}
        assert {o.result for o in outcomes[len(rubbish) :]} <= {Result.SENT, Result.DEAD}
        eventually(lambda: {0, 99} <= set(numbers(target)))

    def test_can_t_add_headers_or_messages(self, target: Counterpart) -> None:
        """A line break in a value, or in a name, ends no header and no command of a protocol."""
        evil = "x\r\nInjected: yes\r\n\r\n{}\nPUB orders 2\r\n{}\r\n"
        bad = [
            {"headers": {"a": evil}},
            {"headers": {evil: "a"}},
            {"key": evil},
            {"aggregate_id": evil},
            {"event_type": evil},
            {"content_type": evil},
        ]
        messages = [message(n, **fields) for n, fields in enumerate(bad, 1)]
        with open_publisher(target) as publisher:
            outcomes = [publisher.publish([one])[0] for one in messages] + publisher.publish([message(0)])
        assert {outcome.result for outcome in outcomes} <= {Result.SENT, Result.DEAD}
        sent = [n for n, outcome in enumerate(outcomes, 1) if outcome == SENT]
        arrived = eventually(lambda: len(found := target.received()) >= len(sent) and found)
        assert sorted(json.loads(one.payload)["n"] for one in arrived) == sorted(n % len(outcomes) for n in sent)
        for one in arrived:
            names = {name.casefold() for name in (*one.headers, *one.attributes)}
            assert "injected" not in names
            assert set(one.headers.values()) <= {evil, "a"}

    def test_that_is_too_large_is_dead(self, target: Counterpart) -> None:
        if target.largest is None:
            pytest.skip(f"{target.name} has no limit that a test can reach")
        large = message(1, payload=b'"' + b"x" * target.largest + b'"')
        with open_publisher(target) as publisher:
            outcomes = settled(publisher, message(0), large, message(2))
        assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
        assert outcomes[1].code == "too_large"
        eventually(lambda: set(numbers(target)) == {0, 2})


class TestTrouble:
    def test_no_server(self, target: Counterpart) -> None:
        """Each outcome says so; what could never be sent is told apart."""
        with open_publisher(target, target.url_at(free_port()), send_timeout=2) as publisher, within(2):
            outcomes = sent_by(publisher, message(0), message(1, headers={"n": 5}), message(2))
        assert {outcomes[0].result, outcomes[2].result} <= AGAIN
        assert outcomes[1].result is Result.DEAD
        assert outcomes[0].code in ("connection", "timeout")
        assert outcomes[0].error

    def test_a_server_that_never_answers(self, target: Counterpart) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = target.url_at(silent.getsockname()[1])
            with closing(loaded(url, send_timeout=1)) as publisher, within(1):
                outcomes = sent_by(publisher, *(message(n) for n in range(100)))
        assert set(results(outcomes)) <= AGAIN
        assert len(outcomes) == 100

    def test_a_network_too_slow_for_a_hundred_messages(self, target: Counterpart) -> None:
        """The time limit is for all of them together, and each has its outcome."""
        messages = [message(n, key=f"key {n}" if n % 2 else None) for n in range(100)]
        url, port = target.url(target.place), port_of(target)
        with (
            Proxy(port) as proxy,
            open_publisher(target, url.replace(str(port), str(proxy.port)), send_timeout=1) as publisher,
        ):
            connected(publisher)
            proxy.delay = 0.2
            with within(1):
                outcomes = sent_by(publisher, *messages)
        assert set(results(outcomes)) <= AGAIN | {Result.SENT, Result.BEHIND}
        assert len(outcomes) == 100
        sent = [n for n, outcome in enumerate(outcomes) if outcome == SENT]
        eventually(lambda: set(sent) <= set(numbers(target)))

    def test_a_server_that_is_killed_and_is_back(self, target: Counterpart) -> None:
        """In the middle of batches, and while others are idle. There is an outcome for each message, whatever happens;
        and afterwards all goes on. A publisher that has not sent meanwhile finds the new server at once."""
        ended: list[list[Outcome]] = []
        with (
            closing(loaded(target.url(target.place), send_timeout=2)) as busy,
            closing(loaded(target.url(target.place), send_timeout=2)) as idle,
            closing(loaded(target.url(target.place), send_timeout=20)) as quiet,
        ):

            def send() -> None:
                deadline = time.monotonic() + 15
                while time.monotonic() < deadline:
                    ended.append(sent_by(busy, *(message(n) for n in range(100))))
                    if set(results(ended[-1])) & AGAIN:
                        return

            connected(idle)
            connected(quiet)
            sending = threading.Thread(target=send)
            sending.start()
            eventually(lambda: ended)
            target.kill()
            assert set(results(sent_by(idle, message(1), message(1)))) <= AGAIN
            sending.join(30)
            assert set(results(ended[-1])) <= AGAIN | {Result.SENT, Result.BEHIND}
            assert all(len(outcomes) == 100 for outcomes in ended)
            target.start()
            target.url(target.place)
            assert sent_by(quiet, message(1002)) == [SENT] or not target.notices_ends
            eventually(lambda: sent_by(busy, message(1000)) == [SENT])
            eventually(lambda: sent_by(idle, message(1001)) == [SENT])
        eventually(lambda: {1000, 1001} <= set(numbers(target)))

    def test_what_somebody_may_mend(self, target: Counterpart) -> None:
        """A wrong password, a place that does not exist, or is not for us: nothing is dead for it, nobody waits, and
        no password is told to anybody."""
        for url_of, code in (
            (target.unroutable_url, "unroutable"),
            (target.wrong_password_url, "unauthorized"),
            (target.forbidden_url, "unauthorized"),
        ):
            url = url_of(target.place)
            if url is None:
                continue  # it asks for no password here, or makes places as they are needed
            with closing(loaded(url, send_timeout=12)) as publisher, within(2):
                [outcome] = sent_by(publisher, message())
            assert outcome.result in AGAIN
            assert outcome.code == code
            assert "wrong" not in str(outcome.error)


def goes_on(publisher: Publisher, target: Counterpart, *, at_once: bool = False) -> None:
    """Two more messages arrive, and one between them is refused. Unless they are to go at once, the first tries may
    meet the end of a connection."""

    def sends() -> bool:
        outcomes = sent_by(publisher, message(30), refused(target, 31), message(32))
        assert outcomes[1].result is not Result.SENT
        return results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]

    assert sends() if at_once else eventually(sends)
    eventually(lambda: {30, 32} <= set(numbers(target)))
    assert 31 not in numbers(target)


class TestTheSecondRound:
    """One publisher is used again after something went wrong: the next batch's outcomes are right, and what arrives."""

    @pytest.mark.parametrize("limit", ["own", "celery"])
    def test_after_a_time_limit_no_answer_of_the_batch_before_counts(self, target: Counterpart, limit: str) -> None:
        """The time limit is its own, or that of a Celery task, which strikes anywhere."""
        with open_publisher(target, send_timeout=target.patience if limit == "own" else 20) as publisher:
            for kind in (Ended, TooLong) if limit == "celery" else (TooLong,):
                connected(publisher)
                batch, outcomes = [message(n) for n in range(1, 4)], []
                with target.frozen(), within(target.patience), struck(0.3 if limit == "celery" else None, kind):
                    outcomes = sent_by(publisher, *batch)
                assert set(results(outcomes)) <= AGAIN, "nobody has answered"
                with open_publisher(target) as another:
                    connected(another)  # by now the server has answered for the batch, too
            goes_on(publisher, target, at_once=limit == "celery")
            if target.spoil():
                assert sent_by(publisher, message(40)) != [SENT], "that was an answer for the batch before"

    def test_after_a_refusal(self, target: Counterpart) -> None:
        """Also the message that was refused, once it was mended."""
        with open_publisher(target) as publisher:
            assert results(publisher.publish([refused(target, 0)])) == [Result.DEAD]
            assert results(publisher.publish([message(1), refused(target, 2), message(3)])) == [
                Result.SENT, Result.DEAD, Result.SENT,
            ]  # fmt: skip
            assert publisher.publish([message(2), message(0)]) == [SENT] * 2
        eventually(lambda: sorted(numbers(target)) == [0, 1, 2, 3])

    def test_after_a_connection_that_broke_in_the_middle_of_a_batch(self, target: Counterpart) -> None:
        url, port = target.url(target.place), port_of(target)
        with (
            Proxy(port) as proxy,
            open_publisher(target, url.replace(str(port), str(proxy.port)), send_timeout=4) as publisher,
        ):
            connected(publisher)
            proxy.silence()

            def end_it() -> None:
                proxy.reset()
                proxy.resume()

            breaking = threading.Timer(0.2, end_it)
            breaking.start()
            outcomes = sent_by(publisher, message(1), message(2))
            breaking.join()
            # Some go on over another connection at once.
            assert set(results(outcomes)) <= AGAIN | {Result.SENT}
            goes_on(publisher, target)
        sent = [number for number, outcome in enumerate(outcomes, 1) if outcome == SENT]
        assert set(sent) <= set(numbers(target))

    def test_after_it_was_closed(self, target: Counterpart) -> None:
        publisher: Publisher = loaded(target.url(target.place))
        for number in (0, 10, 20):
            batch = [message(number), refused(target, number + 1), message(number + 2)]
            assert results(publisher.publish(batch)) == [Result.SENT, Result.DEAD, Result.SENT]
            publisher.close()
        publisher.close()
        eventually(lambda: sorted(numbers(target)) == [0, 2, 10, 12, 20, 22])


def test_processes_that_were_forked_after_it_was_used(target: Counterpart, tmp_path: Path) -> None:
    """They publish, and so does their parent afterwards, as before."""
    found = in_a_process(sent_in_forks, target.url(target.place), log=tmp_path / "log")
    assert found == [f"{number} sent" for number in range(4)], (tmp_path / "log").read_text()
    eventually(lambda: sorted(numbers(target)) == [0, 1, 2, 3])
