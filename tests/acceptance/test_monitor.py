"""What workers answer over HTTP: those that are at work, and those that only seem to be."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from sqlalchemy import Engine

from lab.proxy import Proxy
from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.local.commands import CELERY, outbox_tasks_argv
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.operating import pauses
from outbox_tasks.operating.problems import examine, examine_worker
from outbox_tasks.relay.store import Store
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import Rows, eventually, seconds_from_now

LONG = 4 * LATE_SECONDS
"""Seconds in which what is late is found to be."""


def url(worker: Worker) -> str:
    """Where it says that it answers."""
    return eventually(lambda: re.search(r"the monitor answers at (\S+)", worker.logs()), 60)[1]


# One for all: each makes a context for TLS, which takes longer than many requests.
client = httpx.Client(timeout=60)


def ask(worker: Worker, page: str, timeout: float = 60) -> httpx.Response:
    return client.get(f"{url(worker)}/{page}", headers={"connection": "close"}, timeout=timeout)


def node(worker: Worker) -> str:
    return str(worker.hostname())


@pytest.fixture
def proxied(broker_url: str) -> Iterator[Any]:
    """Makes proxies before the broker, and says what its URL is through them."""
    made: list[Proxy] = []

    def make() -> tuple[Proxy, str]:
        parts = urlsplit(broker_url)
        made.append(Proxy(int(parts.port or 6379)))
        netloc = parts.netloc.replace(f":{parts.port}", f":{made[-1].port}")
        return made[-1], parts._replace(netloc=netloc).geturl()

    yield make
    for proxy in made:
        proxy.close()


@pytest.mark.timeout(300)
def test_a_stuck_worker_is_told_from_an_idle_one(relay: Relay, engine: Engine, schema: str, proxied: Any) -> None:
    """Four of them side by side: at work; stopped; with a half-open connection to its broker; with a broker that is
    down, and that would not come back if the worker were started anew."""
    (silent, silent_url), (down, down_url) = proxied(), proxied()
    fine = relay.claim("fine", monitor_port=0)
    stopped = relay.claim("stopped", monitor_port=0)
    half_open = relay.claim("half", monitor_port=0, broker_url=silent_url)
    without = relay.claim("without", monitor_port=0, broker_url=down_url)
    relay.ready()
    all_of_them = [fine, stopped, half_open, without]
    for worker in all_of_them:
        eventually(lambda worker=worker: ask(worker, "readyz").is_success)
        assert ask(worker, "livez").json() == {"ok": True, "findings": []}
        eventually(lambda worker=worker: not examine_worker(relay.settings, node(worker)).problems)
    store = Store.connect(relay.settings)
    pauses.pause(store, "orders", "alice", None)
    store.close()
    Rows(engine, schema).insert(1, locked_until=seconds_from_now(-9999))

    stopped.freeze()
    silent.silence()
    down.close()

    eventually(lambda: ask(half_open, "livez").status_code == 503, LONG)
    # Whether it still waits for an answer, or tries to connect anew.
    hangs = re.compile(r"(its loop has not turned|it has been without its broker) for \d+ s")
    assert hangs.fullmatch(ask(half_open, "livez").json()["findings"][0])
    eventually(lambda: "without its broker for" in str(ask(without, "readyz").json()["findings"]), LONG)
    assert ask(without, "livez").is_success
    assert ask(without, "readyz").status_code == 503
    with pytest.raises(httpx.TimeoutException):
        ask(stopped, "livez", timeout=1)
    for worker in (stopped, half_open, without):
        eventually(lambda worker=worker: examine_worker(relay.settings, node(worker)).problems, LONG)
    # It has had as much time as they, nothing to do, and a destination that is paused.
    assert ask(fine, "livez").json() == {"ok": True, "findings": []}
    assert ask(fine, "readyz").json() == {"ok": True, "findings": []}
    assert examine_worker(relay.settings, node(fine)).problems == []
    assert "stale" not in {problem.code for problem in examine(relay.settings).problems}

    stopped.thaw()
    silent.resume()
    for worker in (stopped, half_open):
        eventually(lambda worker=worker: ask(worker, "livez").is_success and ask(worker, "readyz").is_success, LONG)
        eventually(lambda worker=worker: not examine_worker(relay.settings, node(worker)).problems, LONG)


def test_a_worker_answers_before_it_has_found_its_broker(relay: Relay) -> None:
    worker = relay.publish(9, monitor_port=0, broker_url=f"redis://{LOOPBACK}:{free_port()}/0")
    assert ask(worker, "livez").is_success
    assert ask(worker, "readyz").json()["findings"] == ["it is not connected to its broker"]


def test_the_pool_s_processes_do_not_keep_the_port(relay: Relay) -> None:
    """They outlive a worker that is killed, for a while: then its successor could not have it."""
    worker = relay.publish(8, monitor_port=0)
    worker.ready()
    port = int(url(worker).rpartition(":")[2])

    def listening(process: psutil.Process) -> bool:
        return any(one.laddr.port == port for one in process.net_connections("tcp") if one.status == "LISTEN")

    eventually(lambda: listening(psutil.Process(worker.pid)))
    pool = worker.container.pool()
    assert pool
    eventually(lambda: not any(map(listening, pool)))


def test_a_port_that_is_taken_is_an_error_at_the_start(relay: Relay) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        worker = relay.worker([*CELERY, "worker", "-P", "solo"], monitor_port=port)
        assert worker.container.child.wait(60) not in (0, None)
        said = worker.logs()
    [line] = [line for line in said.splitlines() if "monitor" in line]
    assert line.startswith(
        f"outbox_tasks: The monitor can't listen on {LOOPBACK}, port {port}: Address already in use."
    )
    assert "Traceback" not in said


def test_without_a_worker_the_monitor_answers_for_the_database_and_the_broker(relay: Relay, tmp_path: Path) -> None:
    nobody = free_port()
    away = {
        "database_url": f"postgresql://me:secret@{LOOPBACK}:{nobody}/x",
        "broker_url": f"redis://{LOOPBACK}:{nobody}/0",
    }
    for values, expected in (({}, 200), (away, 503)):
        argv = outbox_tasks_argv("health", "--serve", "--port", "0")
        with Child.start("monitor", argv, env=relay.env(**values), log=tmp_path / f"log{expected}") as child:
            said = eventually(lambda child=child: re.search(r"answers at (http://[^/]+)/", child.tail(5)))
            assert client.get(f"{said[1]}/livez").is_success
            ready = client.get(f"{said[1]}/readyz")
            assert (ready.status_code, len(ready.json()["findings"])) == (expected, 0 if expected == 200 else 2)
            assert "secret" not in ready.text
            metrics = client.get(f"{said[1]}/metrics")
            assert metrics.is_success
            assert ('code="database_away"' in metrics.text) == (expected == 503)
            assert client.get(f"{said[1]}/other").status_code == 404
