"""How a process of the application reaches the relay's broker: what it sends, how, and after trouble."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.errors import BrokerUnreachable, CrossedWires
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import CLAIM_QUEUE
from tests.conftest import MakeSettings, Rows, eventually

NewBroker = Callable[[], Broker]


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
    assert broker.wake_claim()
    assert not new_broker().wake_claim()


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
    own_redis.restart()
    eventually(lambda: _answers(broker))
    assert broker.wake_claim()
    assert len(clients()) == 1


def _answers(broker: Broker) -> bool:
    with suppress(BrokerUnreachable):
        return broker.queued() == 0
    return False


def test_commits_wake_the_claim_again_once_the_broker_is_back(
    settings: MakeSettings, rows: Rows, engine: Engine, own_redis: EmbeddedValkey, client: redis.Redis
) -> None:
    outbox = Outbox(settings(broker_url=own_redis.url))

    def publish() -> bool:
        with Session(engine) as session, session.begin():
            outbox.publish(session, "order.created", {}, to="orders")
        return True

    publish()
    eventually(lambda: client.llen(CLAIM_QUEUE))
    own_redis.kill()
    publish()
    own_redis.start()
    client.delete(CLAIM_QUEUE)
    eventually(lambda: publish() and client.llen(CLAIM_QUEUE))
