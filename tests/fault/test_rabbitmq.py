"""The relay on RabbitMQ. examples/test_rabbitmq_site.py has it beside an application's own apps."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from lab.proxy import Proxy, through
from outbox_tasks import Outbox
from outbox_tasks.broker.broker import Broker
from outbox_tasks.errors import CrossedWires
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import distribution
from tests.conftest import Rows, Stream, eventually
from tests.contract.counterparts.rabbitmq import Counterpart, running
from tests.fault.conftest import CALM, destinations, drained


@pytest.fixture(params=[3, 4], ids=["RabbitMQ 3", "RabbitMQ 4"])
def rabbit(request: pytest.FixtureRequest) -> Counterpart:
    """Of each version."""
    return running(request.param)


@pytest.fixture
def values(values: dict[str, Any], rabbit: Counterpart, stream: Stream) -> dict[str, Any]:
    return {**values, **CALM, "broker_url": rabbit.broker, "destinations": destinations(stream)}


def test_all_is_delivered_by_the_nudge_alone_and_over_lost_connections(
    rabbit: Counterpart, values: dict[str, Any], rows: Rows, stream: Stream, engine: Engine, tmp_path: Path
) -> None:
    with Proxy(rabbit.port) as proxy:
        there = {**values, "broker_url": through(rabbit.broker, proxy)}
        relay = Relay(tmp_path, there, distribution(tmp_path / "plugins"))
        try:
            outbox = Outbox(relay.settings)
            ids: list[str] = []

            def publish() -> None:
                with Session(engine) as session, session.begin():
                    ids.append(str(outbox.publish(session, "order.created", {}, to="orders")))

            publish()  # before there is any queue
            workers = [relay.publish()]
            relay.ready()  # a task that is sent before its queue exists is lost until its lease ends
            workers.append(relay.claim())
            relay.ready()
            for _ in range(3):
                publish()
                eventually(lambda: ids[-1] in stream.ids())
            relay.beat()
            relay.ready()
            ids += rows.insert(100)
            for _ in range(5):
                ids += rows.insert(2, destination="told", payload=json.dumps({"fail": 1}).encode())
            drained(rows)
            assert sorted(stream.ids()) == sorted(ids)
            ends = {(row.destination, row.attempts, row.last_error_code) for row in rows.archived()}
            assert ends == {("orders", 1, None), ("told", 2, "told")}

            proxy.forget()  # those of workers, of the claim, and of beat
            rows.insert(3)
            drained(rows)
            assert all(worker.alive for worker in workers)
        finally:
            relay.close()


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
            with pytest.raises(CrossedWires) as refused:
                broker.has_forgotten(other)
            assert (refused.value.owner, refused.value.outbox) == (mine, other)
        assert broker.adopt(other) == mine
        assert not broker.has_forgotten(other)
