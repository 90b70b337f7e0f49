"""An example for each module of tests, in its own directory, with a database and a Redis database of its own.

A module says by `example` which one, and starts its processes in a fixture. At the module's end they must stop cleanly.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psycopg
import pytest

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.local.relay import WORKER_READY, outbox_tasks_argv
from tests.conftest import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
START_TIMEOUT = STOP_TIMEOUT = 60.0
CTRL_C = signal.SIGINT
PYTHON = (sys.executable, "-m")
STAFF_PASSWORD = "a password of the shop"


class Project:
    """The processes of one example, and how to speak to it."""

    def __init__(self, directory: Path, scratch: Path, env: dict[str, str]) -> None:
        self.directory = directory
        self.env = env
        self.scratch = scratch
        self.python = sys.executable
        self._children: list[Child] = []
        self._clients: list[httpx.Client] = []

    def run(self, *argv: str) -> None:
        """Run a command to its end."""
        with Child.start(argv[-1], argv, env=self.env, cwd=self.directory) as child:
            assert child.wait(START_TIMEOUT) == 0, child.tail(40)

    def start(self, name: str, *argv: str, ready: str = "", stop_signal: signal.Signals = CTRL_C, **env: str) -> Child:
        """Start a process, and wait until it says that it is ready."""
        options: dict[str, Any] = {"cwd": self.directory, "stop_signal": stop_signal, "stop_timeout": STOP_TIMEOUT}
        child = Child.start(name, argv, env={**self.env, **env}, **options)
        self._children.append(child)
        if ready:
            child.wait_for(ready, START_TIMEOUT)
        return child

    def worker(self, app: str, *options: str, **env: str) -> Child:
        """Start a Celery worker; `-B` gives it a beat."""
        schedule = ["-s", str(self.scratch / "beat")] if "-B" in options else []
        argv = [self.python, "-m", "celery", "-A", app, "worker", "-P", "solo", "-l", "INFO", "--without-mingle"]
        # Celery counts an end by Ctrl-C as a failure.
        return self.start("worker", *argv, *schedule, *options, ready=WORKER_READY, stop_signal=signal.SIGTERM, **env)

    def web(self, *argv: str, **env: str) -> httpx.Client:
        """Start a web server on the port that `{port}` stands for; returns a client, once it answers."""
        port = free_port()
        child = self.start("web", *(part.format(port=port) for part in argv), **env)
        client = httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=60)
        self._clients.append(client)

        def answers() -> bool:
            assert child.alive, child.tail(40)
            with suppress(httpx.ConnectError):
                return client.get("/").status_code < 500
            return False

        eventually(answers, START_TIMEOUT)
        return client

    def stop(self) -> list[str]:
        """Stop all at once; returns what those said last that did not end cleanly."""
        for client in self._clients:
            client.close()
        for child in self._children:
            child.ask_to_stop()
        unclean = [f"{child.name}: {code}\n{child.tail()}" for child in self._children if (code := child.stop())]
        self._children.clear()
        return unclean

    def used(self) -> Iterator[Project]:
        """For a fixture: the project, and at the end a look whether all of it ends cleanly."""
        yield self
        unclean = self.stop()
        assert not unclean, "\n".join(unclean)

    def tails(self) -> str:
        """What its processes last said."""
        return "\n".join(f"--- {child.name}\n{child.tail(30)}" for child in self._children)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What is in its database."""
        with psycopg.connect(self.env["OUTBOX_DATABASE_URL"]) as connection:
            return connection.execute(query.encode()).fetchall()

    def counts(self, *tables: str) -> list[int]:
        """How many rows these have."""
        return [self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


@contextmanager
def own_database(postgres_url: str) -> Iterator[str]:
    """The URL of a database for one project alone."""
    name = f"outbox_test_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        # Our role is named outbox, and so a schema of this name would be its first one.
        connection.execute(f"ALTER DATABASE {name} SET search_path = public".encode())
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(scope="module")
def project(
    example: str, tmp_path_factory: pytest.TempPathFactory, postgres_url: str, broker_url: str
) -> Iterator[Project]:
    """The example, with its outbox tables made; nothing runs yet."""
    with own_database(postgres_url) as url:
        env = {"OUTBOX_DATABASE_URL": url, "OUTBOX_BROKER_URL": broker_url}
        made = Project(EXAMPLES / example, tmp_path_factory.mktemp(example), env)
        try:
            made.run(*outbox_tasks_argv("init"))
            yield made
        finally:
            unclean = made.stop()
    assert not unclean, "\n".join(unclean)


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with own_database(postgres_url) as url:
        yield url


@pytest.fixture(autouse=True)
def _say_why(project: Project, request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test's output ends with that of the example's processes."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(project.tails())


def paused_on_the_page(site: httpx.Client, destination: str, name: str) -> None:
    """Pause a destination on the page and resume it: the forms are accepted, and the audit says who it was."""
    path = f"/outbox/destinations/{destination}"
    for act in ("pause", "resume"):
        form = {"why": "a test"}
        assert site.post(f"{path}/{act}", data=form).status_code == 403
        answer = site.post(f"{path}/{act}", data=form, headers={"Origin": str(site.base_url).rstrip("/")})
        assert answer.status_code == 303, answer.text
    audit = site.get("/outbox/audit").text
    assert audit.count(name) >= 2
    assert "a test" in audit
