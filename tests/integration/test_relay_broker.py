"""How a process of the application reaches the relay's broker, which may not be the application's: what it sends, and
after trouble."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.serialization import registry
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.broker.places import same_place
from outbox_tasks.broker.task_broker import limit_waits, plant_canary
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError, CrossedWires
from outbox_tasks.local.binaries import valkey_server
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import examine
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.worker.install import install
from outbox_tasks.worker.start_checks import check
from tests.conftest import MakeSettings, Rows, eventually


class Cluster(EmbeddedValkey):
    """The first server of a cluster."""

    def _start_child(self, port: int, log: Path) -> Child:
        argv = [str(valkey_server()), "--bind", LOOPBACK, "--port", str(port), "--dir", str(self.directory)]
        argv += ["--save", "", "--cluster-enabled", "yes", "--cluster-port", str(free_port())]
        return Child.start(self.name, argv, log=log, cwd=self.directory)


NewBroker = Callable[[], Broker]
NewApp = Callable[..., Celery]


@pytest.fixture
def new_broker(settings: MakeSettings, own_redis: EmbeddedValkey) -> NewBroker:
    """Each is that of another process."""
    made = settings(broker_url=own_redis.url)
    return lambda: Broker(PinnedCelery("writer", broker=own_redis.url, settings=made), made)


@pytest.fixture
def client(own_redis: EmbeddedValkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_redis.url) as made:
        yield made


def test_a_claim_is_woken_unless_one_waits(new_broker: NewBroker, client: redis.Redis) -> None:
    broker = new_broker()
    assert [broker.wake_claim() for _ in range(3)] == [True, False, False]
    assert client.llen(CLAIM_QUEUE) == 1
    client.delete(CLAIM_QUEUE)
    registry._set_default_serializer("pickle")  # as an application may
    try:
        assert broker.wake_claim()
    finally:
        registry._set_default_serializer("json")
    assert json.loads(client.lrange(CLAIM_QUEUE, 0, 0)[0])["content-type"] == "application/json"  # type: ignore[index]
    assert not new_broker().wake_claim()
    assert [broker.wake_drain("orders") for _ in range(12)] == [True] * 10 + [False] * 2


def test_the_stamp_is_under_the_key_prefix_of_the_app(
    settings: MakeSettings, own_redis: EmbeddedValkey, client: redis.Redis
) -> None:
    made = settings(broker_url=own_redis.url, broker_transport_options={"global_keyprefix": "shop:"})
    brokers = [Broker(PinnedCelery("relay", broker=own_redis.url, settings=made), made) for _ in range(3)]
    assert [broker.has_forgotten("mine") for broker in brokers[:2]] == [True, False]
    with pytest.raises(CrossedWires, match="mine"):
        brokers[2].has_forgotten("other")
    assert brokers[2].adopt("other") == "mine"
    assert client.get("shop:outbox.stamp") == b"other"


def test_a_redis_where_we_may_not_write_has_no_stamp_and_no_key_of_ours(
    settings: MakeSettings, own_redis: EmbeddedValkey, client: redis.Redis
) -> None:
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "+@connection", "-info")
    url = own_redis.url.replace("://", "://reader:hunter2@")
    made = settings(broker_url=url)
    broker = Broker(PinnedCelery("relay", broker=url, settings=made), made)
    broker.check_server()
    Broker(PinnedCelery("relay", broker="amqp://h", settings=made), made).check()  # no visibility timeout there
    assert not broker.has_forgotten("mine")
    with broker.producer() as producer:
        assert plant_canary(producer, "a key") is None
        with pytest.raises(TimeoutError):
            limit_waits(producer, time.monotonic())
    with pytest.raises(BrokerUnreachable, match=r"refused \*\*\*"), broker.producer():
        raise OSError("refused hunter2")


def test_a_process_keeps_one_client_of_redis_until_its_connections_are_lost(
    new_broker: NewBroker, own_redis: EmbeddedValkey
) -> None:
    broker = new_broker()

    def clients() -> set[int]:
        found = []
        for _ in range(2):
            broker.queued()
            with broker.producer() as producer, producer.channel.conn_or_acquire() as client:
                found.append(client)
        return set(map(id, found))

    assert len(clients()) == 1
    own_redis.kill()
    own_redis.start()
    eventually(lambda: _answers(broker))
    assert broker.wake_claim()
    assert len(clients()) == 1


def publish(outbox: Outbox, engine: Engine) -> bool:
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", {}, to="orders")
    return True


def _answers(broker: Broker) -> bool:
    with suppress(BrokerUnreachable):
        return broker.queued() == 0
    return False


@pytest.fixture
def theirs(own_redis: EmbeddedValkey) -> str:
    """The application's broker; the relay's is the server's first database."""
    return own_redis.url.replace("/0", "/1")


@pytest.fixture
def new_app() -> Iterator[NewApp]:
    with ExitStack() as stack:

        def make(broker: str, **conf: Any) -> Celery:
            app = Celery("shop", broker=broker, set_as_current=False)
            app.conf.update(conf)
            stack.callback(app.close)
            return app

        yield make


def nudges(url: str, prefix: str = "") -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.llen(prefix + CLAIM_QUEUE))


def test_the_nudge_goes_to_the_broker_of_the_settings_or_else_as_the_app_says(
    settings: MakeSettings, rows: Rows, engine: Engine, own_redis: EmbeddedValkey, theirs: str, new_app: NewApp
) -> None:
    app = new_app(theirs, broker_transport_options={"global_keyprefix": "shop:"})
    publish(Outbox(settings(broker_url=own_redis.url), celery=app), engine)
    eventually(lambda: nudges(own_redis.url))
    assert nudges(theirs, "shop:") == 0
    for given in (None, theirs):
        publish(Outbox(settings(broker_url=given), celery=app), engine)
        eventually(lambda: nudges(theirs, "shop:"))
        with redis.Redis.from_url(theirs) as client:
            client.flushdb()


def test_an_app_that_has_the_relay_installed_must_have_its_broker(
    settings: MakeSettings, rows: Rows, own_redis: EmbeddedValkey, theirs: str, new_app: NewApp
) -> None:
    resources = install(new_app(theirs), settings(broker_url=own_redis.url))
    with pytest.raises(ConfigurationError, match=r"Setting broker_url = .* take the relay's tasks from redis://.*/1\."):
        check(resources)
    check(install(new_app(theirs), settings(broker_url=theirs)))
    check(install(new_app(theirs), settings(broker_url=None)))
    # A worker may start before its database.
    check(install(new_app(theirs), settings(broker_url=None, database_url="postgresql://me@127.0.0.1:1/shop")))


PLACES = [
    ("redis://h/0", "redis://:secret@H:6379", True), ("redis://h/0", "redis://h/1", False),
    ("rediss://h", "redis://h/0", True), ("redis://a;redis://b", "redis://b", True),
    ("amqp://u:p@h//", "pyamqp://h:5672", True), ("amqp://h//", "amqp://h:5672/%2f", True),
    ("amqp://h/shop", "amqp://h/", False), ("amqp://h/shop", "amqp://h//shop", False),
    ("amqps://h/my%2Fshop", "amqp://h/my/shop", True), ("sentinel://h/1", "sentinel://h:26379/1", True),
    ("redis://[::1]", "redis://[::1]:6379/0", True),
]  # fmt: skip


def test_two_urls_of_one_broker_are_known_as_one() -> None:
    for one, other, same in PLACES:
        assert same_place(one, other) is same_place(other, one) is same, (one, other)


def test_a_cluster_is_refused_in_one_line(rows: Rows, settings: MakeSettings, new_app: NewApp) -> None:
    with Cluster() as cluster:
        relay = settings(broker_url=cluster.url)
        with pytest.raises(ConfigurationError, match=r"^Setting broker_url = .* is a Redis cluster, .*\Z"):
            check(install(new_app(cluster.url), relay))
        [problem] = [found for found in examine(relay).everything if found.code == "broker_away"]
    assert "is a Redis cluster" in problem.fact
