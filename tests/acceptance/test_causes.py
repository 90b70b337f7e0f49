"""Each trouble that people meet at night is named by its cause, and is gone soon after it is mended.

The processes are real. Each test prints the seconds until the cause stood first, and until it was gone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from celery import Celery
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import Connections, Problem, Severity, Site, look
from tests.acceptance.nodes import Beat, Relay, Worker
from tests.conftest import Rows, eventually

CELERY = [sys.executable, "-m", "celery", "-A"]
PATIENCE = 90.0


class Receiver(ThreadingHTTPServer):
    """A webhook whose answers the test chooses."""

    status = 200


class Request(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver((LOOPBACK, 0), Request) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedValkey]:
    """One that the test may kill."""
    with EmbeddedValkey() as server:
        yield server


@pytest.fixture(scope="module")
def broker_url(broker: EmbeddedValkey) -> str:
    return broker.url


@pytest.fixture(scope="module")
def destinations(receiver: Receiver) -> dict[str, Any]:
    hook = f"http://{LOOPBACK}:{receiver.server_port}/?outbox_private=allow"
    return {"hook": {"url": hook}, "tasks": {"url": "celery://?queue=shop", "confirm": "run"}}


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return {"backoff_base": 0.5, "backoff_cap": 5}


class Parts:
    """The processes of the relay and of the application."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.claim: Worker = relay.claim()
        self.publish: Worker = self._sends("publish", "outbox.publish")
        self.drain: Worker = self._sends("drain", "outbox.drain")
        self.beat: Beat = relay.beat()
        self.shop: Worker = self.supervised("shop")
        relay.ready()

    def _sends(self, name: str, queue: str) -> Worker:
        argv = [*CELERY, "outbox_tasks", "worker", "-Q", queue, "-n", f"{name}@%h", "-P", "solo", "-l", "INFO"]
        return self.relay.worker([*argv, "--without-mingle", "--without-gossip"])

    def supervised(self, queue: str) -> Worker:
        argv = [*CELERY, "tests.acceptance.supervised_app", "worker", "-l", "INFO", "-P", "threads", "-c", "2"]
        return self.relay.worker([*argv, "--without-mingle", "-Q", queue, "-n", f"{queue}@%h"])


@pytest.fixture(scope="module")
def parts(relay: Relay) -> Parts:
    return Parts(relay)


@pytest.fixture
def watch(parts: Parts) -> Iterator[Callable[[], list[Problem]]]:
    """What every surface shows: see `test_surfaces`. The relay is in order before a test begins."""
    with closing(Connections(parts.relay.settings)) as connections:

        def problems() -> list[Problem]:
            return [each for each in look(Site(connections)).problems if each.severity is not Severity.NOTE]

        eventually(lambda: not wanted(problems()), PATIENCE)
        yield problems


def wanted(problems: list[Problem]) -> list[Problem]:
    """Without what this relay has all the time: its supervised tasks share its broker."""
    return [each for each in problems if each.code not in ("dead_letters", "tasks_with_the_relay")]


def named(watch: Callable[[], list[Problem]], code: str | tuple[str, ...], *parts_of_fact: str) -> Problem:
    """Wait until this, or one of these, is the first problem."""
    began = time.monotonic()

    def first() -> Problem | None:
        problems = wanted(watch())
        return problems[0] if problems and problems[0].code in ((code,) if isinstance(code, str) else code) else None

    try:
        problem: Problem = eventually(first, PATIENCE)
    except AssertionError:
        pytest.fail(f"{code} is not named first, but: {wanted(watch())}")
    print(f"{code}: named after {time.monotonic() - began:.1f} s: {problem.fact}")
    assert all(part in problem.fact for part in parts_of_fact), problem.fact
    return problem


def gone(watch: Callable[[], list[Problem]], *codes: str) -> None:
    began = time.monotonic()
    eventually(lambda: not {each.code for root in watch() for each in (root, *root.follows)} & {*codes}, PATIENCE)
    print(f"{codes}: gone after {time.monotonic() - began:.1f} s")


@contextmanager
def killed(node: Worker | Beat) -> Iterator[None]:
    """Inside, a process is gone, as after `kill -9`."""
    node.container.kill()
    for child in node.container.pool() if node.container.child.alive else ():
        child.kill()
    yield
    node.container.restart()
    node.container.ready()


def publish(rows: Rows, count: int, destination: str = "hook") -> list[str]:
    return rows.insert(count, destination=destination)


def test_redis_is_stopped(parts: Parts, watch: Any, broker: EmbeddedValkey) -> None:
    broker.kill()
    problem = named(watch, "broker_away")
    assert len(wanted(watch())) == 1
    broker.restart()
    gone(watch, "broker_away")
    assert problem.severity is Severity.ERROR


def test_a_worker_is_gone(parts: Parts, watch: Any, rows: Rows) -> None:
    with killed(parts.drain):
        publish(rows, 3)
        named(watch, "no_workers", "outbox.drain", "drain@")
    gone(watch, "no_workers")


def test_beat_is_gone(parts: Parts, watch: Any) -> None:
    with killed(parts.beat):
        named(watch, "no_beat")
    gone(watch, "no_beat")


def test_the_applications_supervised_workers_are_gone(parts: Parts, watch: Any) -> None:
    with killed(parts.shop):
        named(watch, "tasks_unsupervised", "shop")
    gone(watch, "tasks_unsupervised")


def test_a_task_that_no_worker_knows(parts: Parts, watch: Any, rows: Rows, broker_url: str) -> None:
    with Celery("shop", broker=broker_url, set_as_current=False) as app:
        outbox = Outbox(parts.relay.settings, celery=app)
        with Session(rows.engine) as session, session.begin():
            outbox.apply_async(session, "shop.of_tomorrow", (), queue="shop")
    named(watch, "task_unknown", "shop.of_tomorrow", "shop@")
    with rows.engine.begin() as connection:  # somebody has given the task up
        connection.exec_driver_sql(f"DELETE FROM {parts.relay.settings.database_schema}.outbox_runs")
    parts.shop.container.restart()
    gone(watch, "task_unknown")


def test_a_destination_answers_500_to_everything(parts: Parts, watch: Any, rows: Rows, receiver: Receiver) -> None:
    receiver.status = 500
    publish(rows, 20)
    problem = named(watch, "destination_refuses", "hook", "http_500")
    assert not [each for each in wanted(watch()) if each.which == "hook"][1:], watch()
    receiver.status = 200
    gone(watch, "destination_refuses")
    assert problem.how_many
