"""The effect exactly once, while every message comes twice and the consumer's processes are killed all the time."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from contextlib import suppress

import psutil
import pytest
import redis
from celery import Celery
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Node, Relay
from tests.conftest import eventually

MANY = 480
QUEUE, UNACKNOWLEDGED = "billing", "unacked"
RECEIVED = r"billing\.charge\[([0-9a-f-]{36})\] received"
SEED = 20_260_801
KILLS = 16
BETWEEN = (1, 18)
"""Effects between two kills."""


@pytest.mark.timeout(420)
def test_each_effect_is_made_once_while_every_message_comes_twice_and_workers_are_killed(
    relay: Relay, engine: Engine, schema: str, own_redis: EmbeddedValkey
) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {schema}.charges (id text, n integer)"))
    to_billing = {"billing": {"url": f"celery://?task=billing.charge&queue={QUEUE}"}}
    relay.claim(destinations=to_billing)
    relay.publish(destinations=to_billing)
    relay.beat(destinations=to_billing)
    consumers = [consumer(relay, n) for n in range(2)]
    relay.ready()

    outbox = Outbox(relay.settings.replace(destinations=to_billing))
    with Session(engine) as session, session.begin():
        ids = [str(outbox.publish(session, "order.created", n)) for n in range(MANY)]
    app = Celery(broker=own_redis.url, set_as_current=False)
    for n, id in enumerate(ids):
        app.send_task("billing.charge", (n,), task_id=id, queue=QUEUE)
    app.close()

    chance = random.Random(SEED)
    kills = 0
    while kills < KILLS and (after := len(charged(engine, schema)) + chance.randint(*BETWEEN)) < MANY:
        eventually(lambda after=after: len(charged(engine, schema)) >= after, 90)
        kill(chance.choice(consumers), chance)
        kills += 1
    assert kills >= KILLS / 2, "nearly all was over before somebody was killed"
    eventually(lambda: len(set(charged(engine, schema))) == MANY, 180)
    eventually(lambda: not left(own_redis), 120)

    charges = Counter(charged(engine, schema))
    assert {id: count for id, count in charges.items() if count != 1} == {}
    assert set(charges) == set(ids)
    deliveries = Counter(id for each in consumers for id in re.findall(RECEIVED, each.logs()))
    # kombu's Redis transport may lose the one message that it is just taking out of the queue when it is killed.
    assert sum(deliveries[id] < 2 for id in ids) <= KILLS
    assert any("it is a duplicate and was skipped" in each.logs() for each in consumers)


def consumer(relay: Relay, n: int) -> Node:
    app = [sys.executable, "-m", "celery", "-A", "tests.fault.consumer_app", "worker", "-l", "INFO"]
    return relay.worker([*app, "-P", "prefork", "-c", "2", "-Q", QUEUE, "-n", f"billing{n}@%h", "--without-mingle"])


def kill(worker: Node, chance: random.Random) -> None:
    """One process of its pool, or all of them with their parent, which then comes back as under a supervisor."""
    with suppress(psutil.NoSuchProcess):
        pool = worker.pool()
        if pool and chance.random() < 0.7:
            chance.choice(pool).kill()
            return
        for process in pool:
            process.suspend()  # in the middle of whatever they do
        worker.kill()
        for process in pool:
            process.kill()
    worker.restart()


def charged(engine: Engine, schema: str) -> list[str]:
    """The message of every effect that was committed."""
    with engine.connect() as connection:
        return list(connection.scalars(text(f"SELECT id FROM {schema}.charges")))


def left(server: EmbeddedValkey) -> int:
    """What consumers have not acknowledged yet."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.llen(QUEUE)) + int(client.hlen(UNACKNOWLEDGED))
