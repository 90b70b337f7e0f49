"""The relay on RabbitMQ, beside two Celery apps of one application on the same server."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from lab.proxy import Proxy, through
from outbox_tasks import Outbox
from outbox_tasks.broker.broker import Broker
from outbox_tasks.errors import CrossedWires
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import PLAIN, Relay
from tests.acceptance.publishers import distribution
from tests.conftest import Rows, Stream, eventually
from tests.contract.counterparts.rabbitmq import Counterpart, running
from tests.fault import several_apps
from tests.fault.conftest import CALM, destinations, drained

APPS = ("shop", "mail")


@pytest.fixture(params=[3, 4], ids=["RabbitMQ 3", "RabbitMQ 4"])
def rabbit(request: pytest.FixtureRequest) -> Counterpart:
    """Of each version."""
    return running(request.param)


@pytest.fixture
def values(values: dict[str, Any], rabbit: Counterpart, stream: Stream) -> dict[str, Any]:
    apps = {name: {"url": f"celery://?queue={name}"} for name in APPS}
    routes = {f"{name}.*": [name] for name in APPS}
    return {
        **values,
        **CALM,
        "broker_url": rabbit.broker,
        "destinations": {**destinations(stream), **apps},
        "routes": routes,
    }


def test_the_relay_works_on_rabbitmq_and_each_app_gets_its_own_tasks(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, own_redis: EmbeddedValkey
) -> None:
    outbox = Outbox(relay.settings)
    with Session(engine) as session, session.begin():  # before there is any queue
        first = str(outbox.publish(session, "order.created", {}, to="orders"))
    workers = [relay.publish()]
    relay.ready()  # a task that is sent before its queue exists is lost until its lease ends
    workers.append(relay.claim())
    beat = relay.beat()
    for name in APPS:
        app = [*PLAIN, "-A", f"tests.fault.several_apps:{name}"]
        argv = [*app, "worker", "-P", "solo", "-l", "INFO", "-n", f"{name}@%h"]
        workers.append(relay.worker(argv, apps_calls_url=own_redis.url))
    relay.ready()
    ids = [first, *rows.insert(100)]
    retried = [
        id for _ in range(5) for id in rows.insert(2, destination="told", payload=json.dumps({"fail": 1}).encode())
    ]
    with Session(engine) as session, session.begin():
        for value in range(10):
            outbox.delay(session, several_apps.pay, value)
            outbox.delay(session, several_apps.send, value)
    drained(rows)
    with redis.Redis.from_url(own_redis.url) as client:
        for name in APPS:
            expected = sorted(f"{name} {value}".encode() for value in range(10))
            eventually(lambda n=name, e=expected: sorted(client.lrange(f"calls.{n}", 0, -1)) == e)  # type: ignore[type-var]
    ours = {str(row.id): row for row in rows.archived() if row.destination not in APPS}
    assert sorted(stream.ids()) == sorted([*ids, *retried])
    ends = {(row.destination, row.attempts, row.last_error_code) for row in ours.values()}
    assert ends == {("orders", 1, None), ("told", 2, "told")}

    beat.teardown()  # the nudge alone wakes the claim
    for _ in range(3):
        with Session(engine) as session, session.begin():
            last = str(outbox.publish(session, "order.created", {}, to="orders"))
        eventually(lambda last=last: last in stream.ids())
    assert {worker.container.status for worker in workers} == {"running"}


@pytest.mark.parametrize("rabbit", [4], indirect=True)
def test_messages_that_wait_for_a_retry_hold_up_no_others(
    relay: Relay, rows: Rows, stream: Stream, values: dict[str, Any]
) -> None:
    """There a worker's prefetch can't grow, so none of them waits in a worker."""
    waits = {"backoff_base": 45, "backoff_cap": 45}
    relay.publish(**waits)
    relay.ready()
    relay.claim(**waits)
    relay.beat(**waits)
    relay.ready()
    for _ in range(6):
        rows.insert(destination="told", payload=json.dumps({"fail": 9}).encode())
    eventually(lambda: sum(row.attempts for row in rows.hot()) >= 2)
    [good] = rows.insert()
    eventually(lambda: good in stream.ids(), 30)


def test_connections_that_are_lost_in_silence_are_replaced(
    rabbit: Counterpart, values: dict[str, Any], rows: Rows, tmp_path: Path
) -> None:
    """Of workers, of the claim, and of beat."""
    with Proxy(rabbit.port) as proxy:
        there = {**values, "broker_url": through(rabbit.broker, proxy)}
        relay = Relay(tmp_path, there, distribution(tmp_path / "plugins"))
        try:
            relay.publish()
            relay.ready()
            relay.claim()
            relay.beat()
            relay.ready()
            rows.insert(3)
            drained(rows)
            proxy.forget()
            rows.insert(3)
            drained(rows, 60)
        finally:
            relay.close()


def test_tasks_wait_in_workers_only_where_the_prefetch_grows(rabbit: Counterpart, relay: Relay) -> None:
    version = int(rabbit.version.split(".")[0])
    with Celery(broker=rabbit.broker, set_as_current=False) as app, closing(Broker(app, relay.settings)) as broker:
        assert broker.prefetch_grows() is (version == 3)
        app.conf.task_default_queue_type = "quorum"
        del app.amqp.queues
        assert not broker.prefetch_grows()


def test_a_broker_keeps_the_stamp_of_one_outbox(rabbit: Counterpart, relay: Relay) -> None:
    app = Celery(broker=rabbit.broker, set_as_current=False)
    with app, closing(Broker(app, relay.settings)) as broker:
        mine, other = (f"database d{n}, schema 'our\\s', server 7301234567890123456" for n in range(2))
        assert not broker.has_forgotten(mine)
        for _ in range(2):
            broker._looked_at = -1.0
            with pytest.raises(CrossedWires) as refused:
                broker.has_forgotten(other)
            assert (refused.value.owner, refused.value.outbox) == (mine, other)
        assert broker.adopt(other) == mine
        assert not broker.has_forgotten(other)
