"""Workers say that they are alive, whatever their app and their pool, until they stop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.operating.heartbeats import Heartbeat, Heartbeats
from outbox_tasks.operating.problems import examine
from outbox_tasks.relay.store import Store
from outbox_tasks.telemetry.counters import WRITTEN_AFTER_SECONDS
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Beat, Relay
from tests.conftest import eventually


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay, broker_url: str) -> CeleryWorkerCluster:
    installed = ["env", f"SHOP_BROKER_URL={broker_url}", "C_FORCE_ROOT=1", sys.executable, "-m", "celery"]
    installed += ["-A", "tests.acceptance.installed_app", "worker", "-l", "INFO", "--without-mingle"]
    threads = [*installed, "-Q", "outbox.publish,shop", "-P", "threads", "-c", "3", "-n", "threads@%h"]
    shop = [*installed, "-Q", "shop", "-P", "solo", "-n", "shop@%h"]
    started = [relay.claim(), relay.publish(concurrency=2), *(relay.worker(argv) for argv in (threads, shop))]
    relay.beat()
    return cluster(relay, started)


@pytest.fixture
def store(relay: Relay) -> Iterator[Store]:
    made = Store.connect(relay.settings)
    yield made
    made.close()


def workers(store: Store) -> dict[str, Heartbeat]:
    return {worker.name.partition("@")[0]: worker for worker in Heartbeats.read(store).workers}


def test_each_worker_of_the_relay_writes_its_heartbeat(celery_setup: CeleryTestSetup, store: Store) -> None:
    eventually(lambda: workers(store).keys() >= {"claim", "publish1", "threads"})
    found: dict[str, Any] = {name: worker.facts for name, worker in workers(store).items()}
    assert "shop" not in found  # it serves the application alone
    expected = {
        "claim": (["outbox.claim", "outbox.maintain"], "solo", 1),
        "publish1": (["outbox.drain", "outbox.publish"], "prefork", 2),
        "threads": (["outbox.publish"], "thread", 3),
    }
    told = {name: (facts["queues"], facts["pool"], facts["concurrency"]) for name, facts in found.items()}
    assert {name: told[name] for name in expected} == expected
    claiming = celery_setup.worker_cluster.nodes[0]
    assert found["claim"]["pid"] == claiming.pid


def test_an_idle_relay_is_healthy(celery_setup: CeleryTestSetup, relay: Relay, store: Store) -> None:
    eventually(lambda: not examine(relay.settings).problems)
    before = Heartbeats.read(store)
    for kind in ("claim", "beat"):
        eventually(lambda kind=kind: seen_at(store, kind) > seen_at(before, kind))


def test_a_nudged_claim_does_not_count_as_a_tick_of_beat(
    celery_setup: CeleryTestSetup, relay: Relay, store: Store
) -> None:
    [node] = [node for node in relay.nodes if isinstance(node, Beat)]
    beat = psutil.Process(node.container.pid)
    beat.suspend()
    try:
        # Until what it had sent before has been run, and told.
        eventually(lambda: (Heartbeats.read(store).age("beat") or 0.0) > 2 * WRITTEN_AFTER_SECONDS)
        before = Heartbeats.read(store)
        with PinnedCelery("nudge", broker=str(relay.settings.broker_url), settings=relay.settings) as app:
            Broker(app, relay.settings).wake_claim()
        eventually(lambda: seen_at(store, "claim") > seen_at(before, "claim"))
        assert seen_at(store, "beat") == seen_at(before, "beat")
    finally:
        beat.resume()


def seen_at(seen: Store | Heartbeats, kind: str) -> datetime:
    heartbeats = Heartbeats.read(seen) if isinstance(seen, Store) else seen
    return heartbeats.last[kind].seen_at


def test_a_stopped_worker_deletes_its_heartbeat_and_a_killed_one_does_not(
    celery_setup: CeleryTestSetup, relay: Relay, store: Store
) -> None:
    stopping, killed = relay.publish(2), relay.publish(3)
    relay.ready()
    eventually(lambda: workers(store).keys() >= {"publish2", "publish3"})
    killed.kill()
    stopping.container.child.stop()
    assert "publish2" not in workers(store)
    assert "publish3" in workers(store)
