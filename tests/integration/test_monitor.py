"""What the monitor answers over HTTP, in a worker and without one."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from celery import Celery

from outbox_tasks.errors import PortTaken
from outbox_tasks.local.commands import outbox_tasks_argv
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.monitor import Monitor, MonitorStep, of_worker, standalone
from outbox_tasks.worker.resources import Resources
from tests.conftest import MakeSettings, Rows, eventually
from tests.integration.conftest import environment


@contextmanager
def answering(settings: Settings, pages: Any) -> Iterator[httpx.Client]:
    monitor = Monitor(settings.replace(monitor_port=0), pages)
    monitor.start()
    try:
        with httpx.Client(base_url=monitor.url, timeout=60, headers={"connection": "close"}) as client:
            yield client
    finally:
        monitor.stop()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a broker that takes connections, and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield f"redis://{LOOPBACK}:{server.getsockname()[1]}/0"


def test_a_worker_is_dead_if_its_loop_hangs_but_not_if_its_broker_is_down(
    settings: MakeSettings, rows: Rows, silent: str
) -> None:
    """A new worker would not find a broker that is down either."""

    def findings(broker: str, ticked: float, connected: bool) -> list[tuple[int, int]]:
        """The status, and how many findings, of /livez and /readyz."""
        with Celery("relay", broker=broker, set_as_current=False) as app:
            resources = Resources(app, settings())
            resources.liveness.start(solo=False)
            resources.liveness.connected, resources.liveness._ticked = connected, time.monotonic() - ticked
            with answering(settings(), of_worker(resources)) as client:
                answers = [client.get(f"/{page}") for page in ("livez", "readyz")]
        return [(answer.status_code, len(answer.json()["findings"])) for answer in answers]

    down = f"redis://{LOOPBACK}:{free_port()}/0"
    assert findings(silent, 0.0, connected=True) == [(200, 0), (200, 0)]
    assert findings(silent, 31.0, connected=True) == [(503, 1), (503, 1)]
    assert findings(silent, 1.0, connected=False) == [(200, 0), (503, 1)]
    assert findings(silent, 31.0, connected=False) == [(503, 1), (503, 1)]
    assert findings(down, 31.0, connected=False) == [(200, 0), (503, 1)]


def test_without_a_worker_it_answers_for_the_database_and_the_broker(
    settings: MakeSettings, rows: Rows, tmp_path: Path
) -> None:
    nobody, there = free_port(), settings()
    away = settings(
        database_url=f"postgresql://me:secret@{LOOPBACK}:{nobody}/x", broker_url=f"redis://{LOOPBACK}:{nobody}/0"
    )

    def check(client: httpx.Client, *, is_away: bool) -> None:
        assert client.get("/livez").json() == {"ok": True, "findings": []}
        ready, metrics = client.get("/readyz"), client.get("/metrics")
        assert (ready.status_code, len(ready.json()["findings"])) == ((503, 2) if is_away else (200, 0))
        assert "secret" not in ready.text
        assert (metrics.status_code, 'code="database_away"' in metrics.text) == (200, is_away)
        assert client.get("/other").status_code == 404

    with answering(away, standalone(away)) as client:
        check(client, is_away=True)
    argv, env = outbox_tasks_argv("health", "--serve", "--port", "0"), environment(there, broker_url=there.broker_url)
    with Child.start("monitor", argv, env={**os.environ, **env}, log=tmp_path / "log") as child:
        answers = eventually(lambda: re.search(r"answers at (http://[^/]+)/", child.tail(5)))
        with httpx.Client(base_url=answers[1], timeout=60) as client:
            check(client, is_away=False)


def test_a_page_that_fails_is_an_error_without_its_text(settings: MakeSettings) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    with answering(settings(), {"/metrics": broken}) as client:
        answer = client.get("/metrics")
    assert (answer.status_code, "secret" in answer.text) == (500, False)


def test_a_port_that_is_taken_is_an_error_at_the_start_and_a_forked_process_frees_it(settings: MakeSettings) -> None:
    monitor = Monitor(settings(monitor_port=0), {})
    port = monitor.server_port
    taken = settings(monitor_port=port)
    with pytest.raises(PortTaken, match=f"The monitor can't listen on {LOOPBACK}, port {port}: Address already in use"):
        Monitor(taken, {})
    with Celery("relay", broker="memory://", set_as_current=False) as app:
        vars(app)["outbox_relay"] = Resources(app, taken)
        with pytest.raises(SystemExit, match="outbox_tasks: The monitor can't listen"):
            MonitorStep.create(SimpleNamespace(), SimpleNamespace(app=app))  # type: ignore[arg-type]
    if not (pid := os.fork()):
        monitor.close_inherited()
        os._exit(monitor.socket.fileno() != -1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    monitor.close_inherited()
    assert monitor.socket.fileno() != -1
    monitor.stop()
