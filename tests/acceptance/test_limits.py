"""A limit that a person sets while a flood is under way holds in all workers, and ends by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster

from outbox_tasks.operating import limits
from outbox_tasks.relay.store import Store
from tests.acceptance.conftest import cluster, settled
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

RATE, LASTS_SECONDS = 2, 9
HOLDS_WITHIN_SECONDS = 2


@pytest.fixture(scope="module", params=[50, "all"], ids=["drains", "singly"])
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"singles": request.param}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    started = [relay.claim(), relay.publish(1, 2), relay.publish(2, 2)]
    relay.beat()
    return cluster(relay, started)


@pytest.fixture
def flood(rows: Rows) -> Iterator[None]:
    """Somebody writes a hundred messages a second."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.2):
            rows.insert(20)

    writer = threading.Thread(target=write)
    writer.start()
    yield
    over.set()
    writer.join()


def test_a_rate_of_two_a_second_holds_in_all_workers_within_two_seconds_and_ends_by_itself(
    celery_setup: CeleryTestSetup, relay: Relay, rows: Rows, stream: Stream, flood: None
) -> None:
    eventually(lambda: len(stream) > 100)
    with closing(Store.connect(relay.settings)) as store:
        limits.limit(store, "orders", {"rate_limit": RATE}, "anna", "black friday", LASTS_SECONDS)
    began = time.monotonic()
    time.sleep(HOLDS_WITHIN_SECONDS)
    before = len(stream)
    time.sleep(LASTS_SECONDS - HOLDS_WITHIN_SECONDS - 1)
    sent, seconds = len(stream) - before, time.monotonic() - began - HOLDS_WITHIN_SECONDS
    assert RATE * (seconds - 2) <= sent <= RATE * (seconds + 1)
    before = len(stream)
    eventually(lambda: len(stream) > before + 100, LASTS_SECONDS + 20)
    assert time.monotonic() - began > LASTS_SECONDS


def test_all_that_was_written_arrives(celery_setup: CeleryTestSetup, rows: Rows, stream: Stream) -> None:
    settled(rows)
    assert len(set(stream.ids())) == len(stream)
