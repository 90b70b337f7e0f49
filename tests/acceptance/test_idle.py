"""Beat sends hardly any claims while nothing is due, and misses nothing for that."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine

from outbox_tasks.local.commands import claim_worker_argv
from outbox_tasks.local.ports import free_port
from outbox_tasks.worker.claim_task import SELDOM
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

NOTHING = "claimed 0 messages"


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    claiming = relay.worker(claim_worker_argv(loglevel="DEBUG"))
    started = [claiming, relay.publish()]
    relay.beat()
    return cluster(relay, started)


@pytest.fixture
def rows(engine: Engine, schema: str) -> Rows:
    return Rows(engine, schema)


@pytest.fixture
def empty_claims(celery_setup: CeleryTestSetup) -> Callable[[], int]:
    """How many claims have found nothing."""
    return lambda: str(celery_setup.worker_cluster.nodes[0].logs()).count(NOTHING)


def wait_for_more(empty_claims: Callable[[], int], count: int, within: float) -> float:
    """Wait for so many more of them. Returns the seconds."""
    began, before = time.monotonic(), empty_claims()
    eventually(lambda: empty_claims() >= before + count, within)
    return time.monotonic() - began


def test_an_idle_relay_claims_seldom_and_a_message_without_a_nudge_does_not_wait_for_that(
    empty_claims: Callable[[], int], rows: Rows, stream: Stream
) -> None:
    wait_for_more(empty_claims, 1, 4 * SELDOM)
    assert wait_for_more(empty_claims, 1, 4 * SELDOM) > 0.5 * SELDOM
    rows.insert()
    eventually(lambda: len(stream), 0.8 * SELDOM)


def test_no_process_of_the_relay_listens_anywhere(relay: Relay, celery_setup: CeleryTestSetup) -> None:
    """Unless a setting says so, nobody can connect to them."""
    processes = [psutil.Process(node.container.pid) for node in relay.nodes]
    processes += [child for process in processes for child in process.children(recursive=True)]
    assert len(processes) > len(relay.nodes) > 2
    found = [one for process in processes for one in process.net_connections("inet")]
    assert {one.status for one in found} >= {psutil.CONN_ESTABLISHED}
    assert [one for one in found if one.status == psutil.CONN_LISTEN] == []


def test_beat_without_a_database_sends_every_claim(relay: Relay, empty_claims: Callable[[], int]) -> None:
    """Beside the other beat, whose claims are seldom."""
    beat = relay.beat(database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")
    try:
        beat.ready()
        wait_for_more(empty_claims, 8, 4 * SELDOM)
    finally:
        beat.teardown()
