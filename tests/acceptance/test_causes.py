"""Each trouble that people meet at night is named by its cause, on every surface, and is gone soon after it is mended.

The processes are real. Each test prints the seconds until the cause stood first, and until it was gone.
"""

from __future__ import annotations

import html
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from celery import Celery
from click.testing import CliRunner
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.cli import outbox as command
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import Connections, Problem, Severity, Site, examine, look
from outbox_tasks.web import Page, Person, Role
from tests.acceptance.nodes import Beat, Relay, Worker
from tests.conftest import Rows, eventually

CELERY = [sys.executable, "-m", "celery", "-A"]
PATIENCE = 90.0

Answer = Callable[[int], tuple[int, dict[str, str]]]
"""What a receiver answers to its n-th request: the status and headers."""

OK: Answer = lambda number: (200, {})  # noqa: E731


class Receiver(ThreadingHTTPServer):
    """A webhook whose answers the test chooses."""

    answer: Answer = staticmethod(OK)
    count = 0


class Request(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.count += 1
        status, headers = self.server.answer(self.server.count)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
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
    """What every surface shows: see the last test. The relay is in order before a test begins."""
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


@pytest.mark.parametrize(
    ("name", "queue"), [("claim", "outbox.claim"), ("publish", "outbox.publish"), ("drain", "outbox.drain")]
)
def test_a_worker_is_gone(parts: Parts, watch: Any, rows: Rows, name: str, queue: str) -> None:
    with killed(getattr(parts, name)):
        publish(rows, 3)
        problem = named(watch, "no_workers", queue, f"{name}@")
        assert queue in problem.which
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
    receiver.answer = lambda number: (500, {})
    publish(rows, 20)
    problem = named(watch, "destination_refuses", "hook", "http_500")
    assert not [each for each in wanted(watch()) if each.which == "hook"][1:], watch()
    receiver.answer = OK
    gone(watch, "destination_refuses")
    assert problem.how_many


def test_half_of_the_sends_of_a_destination_fail(parts: Parts, watch: Any, rows: Rows, receiver: Receiver) -> None:
    receiver.answer = lambda number: (500, {}) if number % 2 else (200, {})
    with flow(rows):
        named(watch, "destination_failing", "hook", "%")
        receiver.answer = OK
        gone(watch, "destination_failing")


def test_a_destination_asks_to_wait(parts: Parts, watch: Any, rows: Rows, receiver: Receiver) -> None:
    receiver.answer = lambda number: (429, {"Retry-After": "900"})
    publish(rows, 6)
    # By what arrived just before, and how many were refused since.
    codes = "destination_waits", "destination_refuses", "destination_failing"
    problem = named(watch, codes, "http_429", "the next try is in 1")
    assert problem.which == "hook"
    receiver.answer = OK
    publish(rows, 1)
    gone(watch, *codes)


@contextmanager
def flow(rows: Rows) -> Iterator[None]:
    """Inside, ten messages are written each second."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.5):
            publish(rows, 5)

    thread = threading.Thread(target=write)
    thread.start()
    yield
    ended.set()
    thread.join()


def test_every_surface_says_the_same(parts: Parts, watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in parts.relay.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "400")
    with killed(parts.beat):
        fact = named(watch, "no_beat").fact.partition(" last ")[0]
        texts = {name: CliRunner().invoke(command, [name]).output for name in ("status", "health", "doctor")}
        figures = CliRunner().invoke(command, ["status", "--prometheus"]).output
        texts["metrics"] = figures.replace('code="no_beat"', fact)
        texts["page"] = page(parts)
        assert {name: fact in text for name, text in texts.items()} == dict.fromkeys(texts, True)
        codes = {
            name: [
                each["code"] for each in json.loads(CliRunner().invoke(command, [name, "--json"]).output)["problems"]
            ]
            for name in ("status", "health")
        }
        assert codes["status"] == codes["health"]
        assert set(codes["status"]) <= {each.code for each in examine(parts.relay.settings, deep=True).everything}


def page(parts: Parts) -> str:
    """The start page, as text."""
    with closing(Page(parts.relay.settings, who=lambda host: Person("jo", Role.LOOK))) as made:
        transport = httpx.WSGITransport(app=made.wsgi)
        with httpx.Client(transport=transport, base_url="http://page") as client:
            return html.unescape(client.get("/").text)
