"""An idle relay: its claims leave nothing behind, and miss nothing."""

from __future__ import annotations

import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine

from outbox_tasks.local.commands import claim_worker_argv
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

NOTHING = "claimed 0 singles, started 0 drains"


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    claiming = relay.worker(claim_worker_argv(loglevel="DEBUG"))
    started = [claiming, relay.publish()]
    relay.beat()
    return cluster(relay, started)


@pytest.fixture
def rows(engine: Engine, schema: str) -> Rows:
    return Rows(engine, schema)


def test_a_claim_that_finds_nothing_is_logged_at_debug_only_and_a_message_without_a_nudge_waits_for_the_next_one(
    celery_setup: CeleryTestSetup, rows: Rows, stream: Stream
) -> None:
    claiming = celery_setup.worker_cluster.nodes[0]
    eventually(lambda: claiming.logs().count(NOTHING) > 2)
    assert not [line for line in claiming.logs().splitlines() if NOTHING in line and "DEBUG" not in line]
    rows.insert()
    eventually(lambda: len(stream))


def test_no_process_of_the_relay_listens_anywhere(relay: Relay, celery_setup: CeleryTestSetup) -> None:
    """Unless a setting says so, nobody can connect to them."""
    processes = [psutil.Process(node.container.pid) for node in relay.nodes]
    processes += [child for process in processes for child in process.children(recursive=True)]
    assert len(processes) > len(relay.nodes) > 2
    found = [one for process in processes for one in process.net_connections("inet")]
    assert {one.status for one in found} >= {psutil.CONN_ESTABLISHED}
    assert [one for one in found if one.status == psutil.CONN_LISTEN] == []
