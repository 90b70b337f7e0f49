"""Problems of workers and beat: real ones, of this relay and of others on its broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.cli import outbox
from outbox_tasks.operating.problems import Problem, Severity, examine
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import Rows, Stream, eventually

Start = Callable[..., Worker]
Run = Callable[..., Result]

SHOP = """
from celery import Celery
app = Celery("shop")
app.conf.broker_transport_options = {"visibility_timeout": VISIBILITY}
app.conf.broker_connection_retry_on_startup = True
"""


@pytest.fixture(scope="module")
def destinations(stream: Stream) -> dict[str, Any]:
    """One that is in order."""
    return {"orders": {"url": stream.url}}


@pytest.fixture
def start(relay: Relay, broker_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker that is no part of the relay, and ends it with the test."""
    (tmp_path / "shop.py").write_text(SHOP)
    started: list[Worker] = []

    def run(*options: str, visibility: float = 3600.0, app: str = "shop") -> Worker:
        (tmp_path / "shop.py").write_text(SHOP.replace("VISIBILITY", str(visibility)))
        argv = [sys.executable, "-m", "celery", "-A", app, "-b", broker_url, "--workdir", str(tmp_path)]
        node = relay.worker([*argv, "worker", "-l", "INFO", "-P", "solo", "--without-mingle", *options])
        started.append(node)
        node.ready()
        return node

    yield run
    for node in started:
        node.teardown()
        relay.nodes.remove(node)


@pytest.fixture(scope="module", autouse=True)
def running(relay: Relay) -> None:
    """The relay, all of it."""
    relay.claim()
    relay.publish()
    relay.beat()
    relay.ready()


def found(relay: Relay, *only: str) -> dict[str, Problem]:
    return {problem.code: problem for problem in examine(relay.settings, deep=True, only=only).everything}


def told(relay: Relay, code: str) -> Problem:
    """A problem that may come late: a worker that was just started, on a busy machine, takes its time to answer."""
    problem: Problem = eventually(lambda: found(relay, code).get(code))
    return problem


@pytest.fixture
def run(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `outbox-tasks` with the relay's settings."""
    for name, value in relay.env().items():
        if name.startswith("OUTBOX_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *arguments: CliRunner().invoke(outbox, arguments, prog_name="outbox-tasks")


def test_a_healthy_relay_has_no_problem(relay: Relay, run: Run) -> None:
    eventually(lambda: not found(relay, "no_beat", "no_claims", "no_workers", "no_heartbeat"))
    # A worker may answer late to any of the questions.
    told = eventually(lambda: (one := run("doctor", "--json")).exit_code == 0 and one)
    said = json.loads(told.stdout)
    assert (said["problems"], said["healthy"]) == ([], True)
    assert {"each queue is served", "their settings fit together", "beat ticks"} <= {*said["in_order"]["Workers"]}
    for_people = eventually(lambda: (one := run("doctor")).exit_code == 0 and one)
    assert for_people.stdout.rstrip().endswith("Everything that was looked at is in order.")


def test_another_app_with_a_shorter_visibility_timeout(relay: Relay, start: Start) -> None:
    start("-n", "shop@%h", "-Q", "mails", visibility=30)
    short = told(relay, "visibility_short")
    assert short.severity is Severity.ERROR
    assert "shop@" in short.fact
    assert "a visibility timeout of 30 s. The relay's is 3600 s, and it needs 270." in short.fact


def test_another_app_that_takes_from_our_queues(relay: Relay, start: Start) -> None:
    start("-n", "thief@%h", "-Q", "outbox.maintain")
    assert "thief@" in told(relay, "wrong_worker").fact


def test_two_workers_of_one_name(relay: Relay, start: Start) -> None:
    start("-n", "twin@%h", "-Q", "mails")
    start("-n", "twin@%h", "-Q", "mails")
    assert "2 workers are called twin@" in told(relay, "same_name").fact


def test_a_worker_that_writes_no_heartbeat_here(relay: Relay, rows: Rows, engine: Engine) -> None:
    """As if it worked on another database."""
    h = rows.tables.heartbeats

    def forgotten() -> Problem | None:
        with engine.begin() as connection:
            connection.execute(h.delete().where(h.c.kind == "worker"))
        return found(relay, "no_heartbeat").get("no_heartbeat")

    assert eventually(forgotten).severity is Severity.WARNING
    eventually(lambda: not found(relay, "no_heartbeat"))


def test_a_task_that_the_workers_of_its_queue_do_not_know(
    start: Start, relay: Relay, broker_url: str, engine: Engine, schema: str
) -> None:
    urls = {"events": "celery://?task=shop.on_event&queue=events", "tasks": f"celery://?broker={broker_url}"}
    settings = relay.settings.replace(destinations=urls)
    outbox = Outbox(settings, celery=Celery("shop", broker=broker_url, set_as_current=False))
    with Session(engine) as session, session.begin():
        for task, queue in (("celery.backend_cleanup", "celery"), ("elsewhere.notify", "celery"), ("a.b", "nobody's")):
            outbox.apply_async(session, task, queue=queue)
    worker = start("-Q", "celery,events", "-n", "shop@%h")
    problems = examine(settings, only=["task_unknown"]).problems
    assert [problem.which for problem in problems] == ["elsewhere.notify", "shop.on_event"]
    assert all(worker.hostname() in problem.fact for problem in problems)
