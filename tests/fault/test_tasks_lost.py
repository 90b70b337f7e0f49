"""A worker and its broker are lost together, with all that the broker had, and every stored task runs all the same."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

MANY = 60

WORKER = [sys.executable, "-m", "celery", "-A", "tests.fault.shop_app", "worker", "-B", "-c", "2", "-l", "INFO"]


@pytest.fixture
def values(values: dict[str, object]) -> dict[str, object]:
    return {**values, "destinations": {"tasks": {"url": "celery://", "run_lease": 2}}}


def test_under_install_no_task_is_lost_with_its_worker_and_its_broker(
    relay: Relay, engine: Engine, rows: Rows, redis_url: str, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    worker = relay.worker(WORKER)
    relay.ready()
    app = Celery("shop", broker=own_redis.url, set_as_current=False)
    outbox = Outbox(relay.settings, celery=app)
    outbox.install(app)
    for number in range(MANY):
        with Session(engine) as session, session.begin():
            outbox.delay(session, "shop.mail", number, redis_url, stream.name)

    def mailed() -> Counter[int]:
        return Counter(map(int, stream.client.lrange(stream.name, 0, -1)))  # type: ignore[arg-type]

    eventually(lambda: MANY / 4 < len(mailed()) < MANY * 3 / 4)
    worker.kill()
    worker.container.child.end()
    own_redis.kill()
    own_redis.start()
    assert len(mailed()) < MANY - 5
    worker.restart()
    eventually(lambda: len(mailed()) == MANY, 90)
    eventually(lambda: {row.state for row in rows.shown()} == {"sent"})
    assert mailed().total() <= MANY + 2  # the two that ran as their worker was killed
