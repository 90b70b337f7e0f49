"""What is committed is delivered, whoever wrote it and however the relay is started; what is rolled back is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine, text

from outbox_tasks.local.binaries import postgres_programs
from tests.acceptance.conftest import settled
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

pytestmark = pytest.mark.usefixtures("celery_setup")

CELERY = [sys.executable, "-m", "celery"]

BARE = [*CELERY, "-A", "outbox_tasks", "worker", "-l", "INFO"]
"""One worker for all queues, and beat: the least that is a whole relay."""

DEPLOYED = [[*CELERY, "-A", f"workers.{name}", "worker", "-l", "INFO"] for name in ("claim", "publish", "maintenance")]

KINDS: dict[str, tuple[list[list[str]], list[str], int | str]] = {
    "bare": ([[*BARE, "-c", "2"]], ["-A", "outbox_tasks", "beat"], 50),
    "deployed": (DEPLOYED, ["-A", "beat_schedule", "beat"], "all"),
    "threads": ([[*BARE, "-P", "threads", "-c", "8"]], ["-A", "outbox_tasks", "beat"], 0),
    "gevent": ([[*BARE, "-P", "gevent", "-c", "40"]], ["-A", "outbox_tasks", "beat"], "all"),
}
"""How the relay is started, and how many of its messages travel singly."""

TRANSACTIONS = {"bare": 1000, "deployed": 200, "threads": 1000, "gevent": 50}
"""Of each client of pgbench. A message that travels singly costs the workers far more than one in a batch."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def values(kind: str) -> dict[str, Any]:
    return {"singles": KINDS[kind][2]}


@pytest.fixture(scope="module")
def celery_worker_cluster(kind: str, relay: Relay) -> CeleryWorkerCluster:
    workers = [relay.worker(argv) for argv in KINDS[kind][0]]
    relay.beat([*CELERY, *KINDS[kind][1], "-l", "INFO"])
    relay.ready()
    return CeleryWorkerCluster(*workers)


def test_every_worker_answers_and_none_listens(celery_setup: CeleryTestSetup, relay: Relay, kind: str) -> None:
    """Unless a setting says so, nobody can connect to them."""
    expected = ["claim", "maintenance", "publish"] if kind == "deployed" else ["celery"]

    def answering() -> list[str]:
        return sorted(name.partition("@")[0] for reply in celery_setup.app.control.ping() for name in reply)

    eventually(lambda: answering() == expected)
    processes = [psutil.Process(node.pid) for node in relay.nodes]
    processes += [child for process in processes for child in process.children(recursive=True)]
    states = {each.status for process in processes for each in process.net_connections("inet")}
    assert psutil.CONN_ESTABLISHED in states
    assert psutil.CONN_LISTEN not in states


def test_all_rows_of_pgbench_at_full_speed_are_delivered_once_and_no_others(
    kind: str, engine: Engine, postgres_url: str, schema: str, rows: Rows, stream: Stream, tmp_path: Path
) -> None:
    """To a stream, and through a publisher that fails when two use it at once, as many clients would."""
    ours, count = f"ordered_{kind}", TRANSACTIONS[kind]
    with engine.begin() as connection:
        # Beside the messages, in the same transactions: what the application knows that it has committed.
        connection.execute(text(f"CREATE TABLE {schema}.{ours} (id uuid)"))
    before = len(stream)
    argv = [str(postgres_programs() / "pgbench"), "-n", "-c", "4", "-j", "2", "-t", str(count)]
    for end, destination, weight in (("COMMIT", "orders", 5), ("COMMIT", "told", 4), ("ROLLBACK", "orders", 1)):
        script = tmp_path / f"{end} {destination}"
        script.write_text(
            f"BEGIN;\nINSERT INTO {ours} SELECT outbox_publish('{ours}', "
            f"json_build_object('client', :client_id, 'end', '{end}')::text, destination => '{destination}');\n{end};\n"
        )
        argv += ["-f", f"{script}@{weight}"]
    env = {**os.environ, "PGOPTIONS": f"-c search_path={schema}"}
    subprocess.run([*argv, postgres_url], env=env, capture_output=True, timeout=60, check=True)
    with engine.connect() as connection:
        committed = sorted(str(id) for id in connection.scalars(text(f"SELECT id FROM {schema}.{ours}")))
    assert 3 * count < len(committed) < 4 * count
    eventually(lambda: len(stream) >= before + len(committed), 90)
    settled(rows)
    entries = [entry for entry in stream.entries() if entry["ce_type"] == ours.encode()]
    assert sorted(entry["ce_id"].decode() for entry in entries) == committed
    assert {json.loads(entry["data"])["end"] for entry in entries} == {"COMMIT"}


COOPERATING = """
from gevent import monkey
monkey.patch_all()
import time
import gevent
from outbox_tasks import Settings
from outbox_tasks.relay.store import Store

store = Store.connect(Settings())
store.query("select 1")
started = time.monotonic()
gevent.joinall([gevent.spawn(store.query, "select pg_sleep(1)") for _ in range(5)], raise_error=True)
print(time.monotonic() - started)
"""


def test_greenlets_wait_for_the_database_side_by_side(relay: Relay, kind: str) -> None:
    if kind == "gevent":
        argv = [sys.executable, "-W", "ignore", "-c", COOPERATING]
        ended = subprocess.run(argv, env=os.environ | relay.env(), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert float(ended.stdout) < 5  # one after the other they would take that long
