"""What every publisher promises, and what each writes down on the wire, read back raw."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import redis

from outbox_tasks.destinations import Publisher, load
from outbox_tasks.errors import ConfigurationError, PublisherNotInstalled, UnknownPublisher
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.publish import send
from outbox_tasks.settings import Destination, Settings
from tests.conftest import eventually

SENT = Outcome.sent()

CELERYS = {
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps",
}  # fmt: skip
"""Headers that Celery itself gives a task."""


@dataclass(frozen=True)
class Received:
    """A message as it arrived: by name, what is the same over all transports."""

    attributes: dict[str, str]
    headers: dict[str, str]
    payload: bytes


class Target(ABC):
    """One kind of destination, on a Redis-compatible server: its URL, and what arrived there."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.name = f"outbox_test_{uuid4().hex[:12]}"
        self.client = redis.Redis.from_url(broker)

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def received(self) -> list[Received]: ...

    def publisher(self, **values: Any) -> Publisher:
        settings = Settings(destinations={"orders": {"url": self.url}}, source="/shop", **values)
        return load(settings.destinations["orders"], settings)

    def clear(self) -> None:
        for key in self.client.scan_iter(f"*{self.name}*"):  # kombu keeps bindings beside a queue
            self.client.delete(key)
        self.client.close()


class StreamTarget(Target):
    @property
    def url(self) -> str:
        return f"{self.broker.replace('://', '+stream://', 1)}/{self.name}"

    def raw(self) -> list[dict[str, bytes]]:
        entries: Any = self.client.xrange(self.name)
        return [{name.decode(): value for name, value in fields.items()} for _, fields in entries]

    def received(self) -> list[Received]:
        return [
            Received(
                {n.removeprefix("ce_"): v.decode() for n, v in entry.items() if n.startswith("ce_")},
                {n.removeprefix("h_"): v.decode() for n, v in entry.items() if n.startswith("h_")},
                entry["data"],
            )
            for entry in self.raw()
        ]


class CeleryTarget(Target):
    @property
    def url(self) -> str:
        return f"celery://?task=shop.on_event&queue={self.name}&broker={quote(self.broker, safe='')}"

    def raw(self) -> list[dict[str, Any]]:
        messages: Any = self.client.lrange(self.name, 0, -1)
        return [json.loads(message) for message in reversed(messages)]

    def received(self) -> list[Received]:
        found = []
        for message in self.raw():
            [argument], _, _ = json.loads(base64.b64decode(message["body"]))
            headers = message["headers"]
            found.append(
                Received(
                    {n.removeprefix("ce_"): v for n, v in headers.items() if n.startswith("ce_")},
                    {n: v for n, v in headers.items() if not n.startswith("ce_") and n not in CELERYS},
                    json.dumps(argument, ensure_ascii=False).encode(),
                )
            )
        return found


KINDS: list[type[Target]] = [StreamTarget, CeleryTarget]


@pytest.fixture(params=KINDS, ids=["redis+stream", "celery"])
def kind(request: pytest.FixtureRequest) -> type[Target]:
    made: type[Target] = request.param
    return made


@pytest.fixture
def target(kind: type[Target], redis_url: str) -> Iterator[Target]:
    made = kind(redis_url)
    yield made
    made.clear()


@pytest.fixture
def stream(redis_url: str) -> Iterator[StreamTarget]:
    made = StreamTarget(redis_url)
    yield made
    made.clear()


@pytest.fixture
def celery(redis_url: str) -> Iterator[CeleryTarget]:
    made = CeleryTarget(redis_url)
    yield made
    made.clear()


def message(number: int = 0, **fields: Any) -> LeasedMessage:
    plain: dict[str, Any] = {
        "id": f"0190a5d2-7c4e-7000-8000-{number:012d}",
        "event_type": "order.created",
        "destination": "orders",
        "key": None,
        "payload": b'{"n": %d}' % number,
        "content_type": "application/json",
        "headers": {},
        "aggregate_type": None,
        "aggregate_id": None,
        "created_at": datetime(2030, 1, 2, 3, 4, 5, 678, UTC),
        "attempts": 1,
    }
    return LeasedMessage(**{**plain, **fields})


def sent_by(publisher: Publisher, *numbers: int) -> list[Outcome]:
    """The outcomes as the pipe sees them, for which an exception is a reason to try again."""
    return send({"orders": publisher}, "orders", [message(number) for number in numbers])


def results(outcomes: list[Outcome]) -> list[Result]:
    return [outcome.result for outcome in outcomes]


class TestEveryPublisher:
    def test_sends_a_message_with_all_that_belongs_to_it(self, target: Target) -> None:
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "v=1"}
        full = message(7, key="order:42", aggregate_id="42", headers={"tenant": "t1", **trace})
        with closing(target.publisher()) as publisher:
            assert publisher.publish([full]) == [SENT]
        [arrived] = target.received()
        assert arrived.attributes == {
            "id": full.id, "type": "order.created", "source": "/shop", "time": "2030-01-02T03:04:05.000678+00:00",
            "subject": "42", "partitionkey": "order:42", **trace,
        }  # fmt: skip
        assert arrived.headers == {"tenant": "t1"}
        assert arrived.payload == full.payload

    def test_leaves_out_what_a_message_does_not_have(self, target: Target) -> None:
        with closing(target.publisher()) as publisher:
            assert publisher.publish([message()]) == [SENT]
        [arrived] = target.received()
        assert arrived.attributes.keys() == {"id", "type", "source", "time"}
        assert arrived.headers == {}

    def test_keeps_every_character(self, target: Target) -> None:
        odd = "naïve 😀 \u2028 'q' \"d\" %s {x} \\ \r\n\t"
        sent = message(
            event_type=odd, key=odd, aggregate_id=odd, headers={"odd": odd}, payload=json.dumps(odd).encode()
        )
        with closing(target.publisher()) as publisher:
            assert publisher.publish([sent]) == [SENT]
        [arrived] = target.received()
        assert {arrived.attributes[n] for n in ("type", "partitionkey", "subject")} == {odd}
        assert arrived.headers == {"odd": odd}
        assert json.loads(arrived.payload) == odd

    def test_sends_a_batch_in_its_order(self, target: Target) -> None:
        with closing(target.publisher()) as publisher:
            assert publisher.publish([message(n) for n in range(1000)]) == [SENT] * 1000
        assert [arrived.payload for arrived in target.received()] == [b'{"n": %d}' % n for n in range(1000)]

    @pytest.mark.parametrize("headers", [{"n": 5}, ["a"], "text", {"n": None}, None])
    def test_a_message_with_rubbish_headers_is_dead_and_its_neighbours_are_sent(
        self, target: Target, headers: Any
    ) -> None:
        messages = [message(0), message(1, headers=headers), message(2)]
        with closing(target.publisher()) as publisher:
            sent, dead, also_sent = publisher.publish(messages)
        assert (sent, also_sent) == (SENT, SENT)
        assert (dead.result, dead.code) == (Result.DEAD, "bad_headers")
        assert [arrived.payload for arrived in target.received()] == [b'{"n": 0}', b'{"n": 2}']

    def test_of_nothing_but_rubbish_sends_nothing(self, target: Target) -> None:
        with closing(target.publisher()) as publisher:
            assert results(publisher.publish([message(headers={"n": 5})])) == [Result.DEAD]
        assert target.received() == []

    def test_may_be_used_after_it_was_closed(self, target: Target) -> None:
        publisher = target.publisher()
        for _ in range(2):
            assert publisher.publish([message()]) == [SENT]
            publisher.close()
        assert len(target.received()) == 2

    def test_without_a_server_asks_for_a_retry_of_each(self, kind: type[Target]) -> None:
        target = kind(f"redis://127.0.0.1:{free_port()}/0")
        with closing(target.publisher(send_timeout=1)) as publisher:
            outcomes = publisher.publish([message(0), message(1, headers={"n": 5}), message(2)])
        assert results(outcomes) == [Result.RETRY, Result.DEAD, Result.RETRY]
        assert outcomes[0].code == "connection"
        assert outcomes[0].error

    def test_works_again_when_its_server_was_killed_and_is_back(
        self, kind: type[Target], own_redis: EmbeddedValkey
    ) -> None:
        target = kind(own_redis.url)
        with closing(target.publisher(send_timeout=4)) as publisher:
            assert sent_by(publisher, 0) == [SENT]
            own_redis.kill()
            assert results(sent_by(publisher, 1, 1)) == [Result.RETRY] * 2
            own_redis.start()
            assert sent_by(publisher, 2) == [SENT]
        assert [arrived.payload for arrived in target.received()] == [b'{"n": 2}']

    def test_notices_that_its_server_was_restarted_in_the_meantime(
        self, kind: type[Target], own_redis: EmbeddedValkey
    ) -> None:
        target = kind(own_redis.url)
        with closing(target.publisher(send_timeout=4)) as publisher:
            assert sent_by(publisher, 0) == [SENT]
            own_redis.restart()
            # The first may meet the closed connection, and must not count as sent if it did.
            outcomes = sent_by(publisher, 1) + sent_by(publisher, 1)
        assert outcomes[1] == SENT
        assert len(target.received()) == results(outcomes).count(Result.SENT)

    @pytest.mark.parametrize("count", [1, 100])
    def test_a_server_that_does_not_answer_takes_no_longer_than_the_send_timeout(
        self, kind: type[Target], count: int
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            target = kind(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
            with closing(target.publisher(send_timeout=1)) as publisher:
                started = time.monotonic()
                outcomes = sent_by(publisher, *range(count))
                assert time.monotonic() - started < 1.3
        assert results(outcomes) == [Result.RETRY] * count

    def test_a_server_that_stops_answering_takes_no_longer_than_the_send_timeout(
        self, kind: type[Target], own_redis: EmbeddedValkey
    ) -> None:
        target = kind(own_redis.url)
        with closing(target.publisher(send_timeout=1)) as publisher:
            assert sent_by(publisher, 0) == [SENT]
            os.kill(own_redis.pid, signal.SIGSTOP)
            try:
                started = time.monotonic()
                outcomes = sent_by(publisher, 1)
                assert time.monotonic() - started < 1.3
            finally:
                os.kill(own_redis.pid, signal.SIGCONT)
            assert results(outcomes) == [Result.RETRY]
            eventually(lambda: sent_by(publisher, 2) == [SENT])

    def test_no_server_at_all_takes_no_longer_than_the_send_timeout(self, kind: type[Target]) -> None:
        with closing(kind(f"redis://127.0.0.1:{free_port()}/0").publisher(send_timeout=1)) as publisher:
            started = time.monotonic()
            sent_by(publisher, 0)
            assert time.monotonic() - started < 1.3

    def test_a_server_that_is_full_asks_for_a_retry(self, kind: type[Target], own_redis: EmbeddedValkey) -> None:
        target = kind(own_redis.url)
        with closing(target.publisher()) as publisher:
            target.client.config_set("maxmemory", "1")
            assert results(sent_by(publisher, 0, 1)) == [Result.RETRY] * 2
            target.client.config_set("maxmemory", "0")
            assert sent_by(publisher, 2) == [SENT]

    def test_a_place_of_another_type_never_counts_as_sent(self, target: Target) -> None:
        target.client.set(target.name, "a string")
        with closing(target.publisher()) as publisher:
            assert Result.SENT not in results(sent_by(publisher, 0, 1))


class TestRedisStream:
    def test_writes_the_fields_of_the_contract(self, stream: StreamTarget) -> None:
        sent = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "tenant": "t1"})
        with closing(stream.publisher()) as publisher:
            publisher.publish([sent])
        assert stream.raw() == [
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

    @pytest.mark.parametrize("payload", [b"", bytes(range(256)), b"x" * 1_000_000], ids=["empty", "all", "large"])
    def test_carries_any_bytes(self, stream: StreamTarget, payload: bytes) -> None:
        with closing(stream.publisher()) as publisher:
            assert publisher.publish([message(payload=payload, content_type="application/x-thing")]) == [SENT]
        [entry] = stream.raw()
        assert (entry["data"], entry["content_type"]) == (payload, b"application/x-thing")

    def test_a_key_that_is_no_stream_is_permanent(self, stream: StreamTarget) -> None:
        stream.client.set(stream.name, "a string")
        with closing(stream.publisher()) as publisher:
            outcomes = publisher.publish([message(0), message(1)])
        assert {(o.result, o.code) for o in outcomes} == {(Result.DEAD, "wrong_type")}

    def test_a_refused_password_is_worth_another_attempt(self, own_redis: EmbeddedValkey) -> None:
        target = StreamTarget(own_redis.url)
        target.client.config_set("requirepass", "secret")
        wrong = StreamTarget(own_redis.url.replace("://", "://:wrong@"))
        with closing(wrong.publisher()) as publisher:
            [outcome] = publisher.publish([message()])
        assert (outcome.result, outcome.code) == (Result.RETRY, "unauthorized")

    @pytest.mark.parametrize(
        ("path", "stream"), [("", "orders"), ("/0", "orders"), ("/events", "events"), ("/3/a/b", "a/b")]
    )
    def test_takes_the_stream_from_the_path_or_the_destinations_name(self, path: str, stream: str) -> None:
        publisher: Any = load(*configured(f"redis+stream://localhost:1{path}"))
        assert publisher.stream == stream

    def test_trims_the_stream_when_told_to(self, stream: StreamTarget, redis_url: str) -> None:
        publisher = load(*configured(f"{stream.url}?maxlen=100"))
        with closing(publisher):
            for start in range(0, 1000, 100):
                publisher.publish([message(start + n) for n in range(100)])
        assert 100 <= len(stream.raw()) < 500


class TestCelery:
    def test_sends_a_task_that_celery_takes(self, celery: CeleryTarget) -> None:
        with closing(celery.publisher()) as publisher:
            publisher.publish([message(3)])
        [raw] = celery.raw()
        headers = raw["headers"]
        assert headers["task"] == "shop.on_event"
        assert headers["id"] == headers["ce_id"] == message(3).id
        assert raw["properties"]["correlation_id"] == message(3).id
        assert (raw["content-type"], raw["content-encoding"]) == ("application/json", "utf-8")
        args, kwargs, _ = json.loads(base64.b64decode(raw["body"]))
        assert (args, kwargs) == ([{"n": 3}], {})

    @pytest.mark.parametrize("payload", [b"\xff\x00", b"", b"{oops", "é".encode("latin-1")])
    def test_a_payload_that_is_no_json_is_dead_and_its_neighbours_are_sent(
        self, celery: CeleryTarget, payload: bytes
    ) -> None:
        with closing(celery.publisher()) as publisher:
            outcomes = publisher.publish([message(0), message(1, payload=payload), message(2)])
        assert results(outcomes) == [Result.SENT, Result.DEAD, Result.SENT]
        assert outcomes[1].code == "not_json"
        assert len(celery.received()) == 2

    def test_without_a_task_the_event_type_is_its_name(self, celery: CeleryTarget) -> None:
        url = celery.url.replace("task=shop.on_event&", "")
        with closing(load(*configured(url))) as publisher:
            assert publisher.publish([message(event_type="shop.tasks.receipt")]) == [SENT]
        assert [raw["headers"]["task"] for raw in celery.raw()] == ["shop.tasks.receipt"]

    def test_without_a_broker_the_relays_own_takes_it(self, celery: CeleryTarget) -> None:
        url = f"celery://?queue={celery.name}"
        with closing(load(*configured(url, broker_url=celery.broker))) as publisher:
            assert publisher.publish([message()]) == [SENT]
        assert len(celery.raw()) == 1

    def test_headers_of_the_messages_do_not_replace_celerys_own(self, celery: CeleryTarget) -> None:
        with closing(celery.publisher()) as publisher:
            publisher.publish([message(headers={"task": "evil.task", "id": "other", "tenant": "t1"})])
        [raw] = celery.raw()
        assert (raw["headers"]["task"], raw["headers"]["id"]) == ("shop.on_event", message().id)
        assert raw["headers"]["tenant"] == "t1"


def configured(url: str, **values: Any) -> tuple[Destination, Settings]:
    settings = Settings(destinations={"orders": {"url": url}}, **values)
    return settings.destinations["orders"], settings


class TestLoading:
    @pytest.mark.parametrize(
        ("url", "rule"),
        [
            ("redis+stream://localhost/0/s?maxlen=many", "the only option"),
            ("redis+stream://localhost/0/s?minlen=5", "the only option"),
            ("redis+stream://localhost/stream/more", "/db/stream"),
            ("celery://host/path", "with the options task, queue, broker"),
            ("celery://?quue=shop&broker=redis://localhost/0", "with the options task, queue, broker"),
            ("celery://?queue=shop", "set broker_url"),
        ],
    )
    def test_a_url_that_can_not_work_is_refused_by_its_setting(self, url: str, rule: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load(*configured(url))
        assert caught.value.setting == "destinations.orders.url"
        assert rule in caught.value.rule

    @pytest.mark.parametrize(
        "url",
        [
            "redis+stream://localhost:port/0/s",
            "redis+stream://localhost:99999/0/s",
            "redis+stream://[bad/0/s",
            "celery://?broker=nowhere://localhost",
        ],
    )
    def test_a_url_that_no_client_takes_is_refused_by_its_setting(self, url: str) -> None:
        with pytest.raises(ConfigurationError):
            load(*configured(url))

    @pytest.mark.parametrize(
        "url",
        [
            "redis+stream://localhost/0/s?password=hunter2",
            "redis+stream://:hunter2@localhost:port/0/s",
            "redis+stream://user:hunter2/x@localhost/0/s",
        ],
    )
    def test_a_refused_url_does_not_show_its_password(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load(*configured(url))
        assert "hunter2" not in str(caught.value)

    def test_an_unknown_scheme_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(UnknownPublisher, match=r"'orders'.*'pigeon'.*celery, .*redis\+stream"):
            load(*configured("pigeon://coop"))

    def test_the_documented_tls_scheme_is_registered(self) -> None:
        load(*configured("rediss+stream://localhost:1/0/s"))

    @pytest.fixture
    def distribution(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Installs a package with this entry point and code, for real, on sys.path."""

        def install(code: str) -> None:
            (tmp_path / "pigeon_post.py").write_text(code)
            info = tmp_path / "pigeon_post-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text("[outbox_tasks.publishers]\npigeon = pigeon_post:Pigeon\n")
            monkeypatch.syspath_prepend(tmp_path)

        return install

    def test_a_client_that_is_not_installed_is_named_with_the_extra(self, distribution: Callable[[str], None]) -> None:
        distribution("import no_such_client\nclass Pigeon: ...\n")
        with pytest.raises(PublisherNotInstalled, match=r"no_such_client.*outbox-tasks\[pigeon\]"):
            load(*configured("pigeon://coop"))

    def test_a_publisher_of_another_package_is_found(self, distribution: Callable[[str], None]) -> None:
        distribution(
            "class Pigeon:\n"
            "    def __init__(self, destination, settings):\n"
            "        self.seen = (destination.name, destination.url, settings.source)\n"
        )
        publisher: Any = load(*configured("pigeon://coop", source="/loft"))
        assert publisher.seen == ("orders", "pigeon://coop", "/loft")
