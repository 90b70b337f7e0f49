"""Stored tasks in the hands of workers, with the fixtures of tests of the tables, and of tests at an outbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.store import Runs
from tests.claims import drain_batches
from tests.conftest import MakeStore
from tests.integration.conftest import archived, command, command_settings, lease, outbox, page_settings, visit  # noqa: F401
from tests.storage.conftest import box, next_settings, tables  # noqa: F401
from tests.supervised.tasks import Send, Tasks, supervised


@pytest.fixture
def confirming(new_store: MakeStore, broker_url: str) -> Store:
    """A store whose destination's tasks are supervised; their broker is empty."""
    with redis.Redis.from_url(broker_url) as client:
        client.flushdb()
    return new_store(destinations=supervised(broker_url), broker_url=broker_url)


@pytest.fixture
def tasks(confirming: Store, broker_url: str) -> Iterator[Tasks]:
    runs = Runs(confirming.engine, confirming.settings)
    yield Tasks(broker_url, runs)
    runs.close()


@pytest.fixture
def send(confirming: Store) -> Iterator[Send]:
    publishers = Publishers(confirming.settings)
    yield lambda: {step.value: count for step, count in drain_batches(confirming, publishers).items()}
    publishers.close()
