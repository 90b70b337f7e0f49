"""`outbox-tasks demo` as people start it: what it counts, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import redis
from rich.console import Console
from sqlalchemy import Engine, text

from outbox_tasks.local.demo_report import Figures, KilledWorker, Report
from tests.conftest import GIVEN, eventually

KEYS = (
    "committed", "rolled_back", "delivered", "duplicates", "retried", "dead", "lost", "ghosts",
    "seconds", "per_second", "p50_ms", "p99_ms", "unfinished",
)  # fmt: skip
ORDERS = 300

pytestmark = pytest.mark.timeout(300)


class Running:
    """A demo in a process of its own, and every process that was ever seen below it."""

    def __init__(self, directory: Path, *arguments: str, **env: str) -> None:
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            argv = [sys.executable, "-m", "outbox_tasks", "demo", *arguments]
            self.process = subprocess.Popen(argv, stdout=out, stderr=err, env={**os.environ, **env})
        self.family: dict[int, psutil.Process] = {}

    def remember(self) -> dict[int, psutil.Process]:
        """Remember its current processes."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
            self.family |= {process.pid: process for process in found}
        return self.family

    def wait(self, seconds: float = 170) -> int:
        """Its exit code."""
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, f"it did not end within {seconds:g} s: {self.errors}"
            self.remember()
            time.sleep(0.25)
        return code

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def left(self) -> list[psutil.Process]:
        """Those of its processes that still run. psutil notices a reused number."""
        return [p for p in self.family.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def running(directory: Path, *arguments: str, **env: str) -> Iterator[Running]:
    """Start it, and don't leave it running whatever happens."""
    started = Running(directory, *arguments, **env)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        eventually(lambda: not started.left())


def schemas(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(connection.scalars(text("SELECT nspname FROM pg_namespace")))


def keys(url: str) -> dict[int, int]:
    """How many keys each of the server's databases has, where there are any."""
    with redis.Redis.from_url(url) as client:
        found = client.info("keyspace")
    return {int(name[2:]): facts["keys"] for name, facts in found.items()}  # type: ignore[union-attr]


@pytest.fixture
def somebody_elses(redis_url: str) -> Iterator[None]:
    """A key on the Redis server, which the demo may not touch."""
    with redis.Redis.from_url(redis_url) as client:
        client.set("somebody_elses", "key")
        yield
        client.delete("somebody_elses")


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo and its children make their temporary directories."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@pytest.mark.usefixtures("somebody_elses")
def test_every_committed_order_arrives_and_none_that_was_rolled_back(
    tmp_path: Path, temporary: Path, engine: Engine, postgres_url: str, redis_url: str
) -> None:
    """On given servers it keeps to a corner of its own, and clears it."""
    schemas_before, keys_before = schemas(engine), keys(redis_url)
    given = {"OUTBOX_DATABASE_URL": postgres_url, "OUTBOX_BROKER_URL": redis_url, "TMPDIR": str(temporary)}
    # Settings that are not meant for the demo, and a broker that Celery would prefer.
    others = {"OUTBOX_SINGLES": "7", "OUTBOX_DATABASE_SCHEMA": "nowhere", "CELERY_BROKER_URL": "redis://nowhere"}
    with running(tmp_path, "--json", "--orders", str(ORDERS), **given, **others) as demo:
        eventually(lambda: schemas(engine) - schemas_before, 60)
        eventually(lambda: keys(redis_url).keys() - keys_before.keys(), 60)
        code = demo.wait()
        figures = json.loads(demo.output)
        assert code == 0, demo.errors
        assert tuple(figures) == KEYS
        assert (figures["committed"], figures["rolled_back"]) == (ORDERS, ORDERS // 10)
        assert (figures["delivered"], figures["dead"]) == (ORDERS - 1, 1)
        assert (figures["lost"], figures["ghosts"]) == (0, 0)
        assert figures["retried"] > 0
        assert figures["duplicates"] >= 0
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert "kill -9 of publish" in demo.errors
        assert len(demo.family) > 5
        assert demo.left() == []
    assert list(temporary.iterdir()) == [], "of a worker that is killed, too"
    assert schemas(engine) == schemas_before
    assert keys(redis_url) == keys_before


def test_when_it_is_stopped_in_the_middle_it_and_its_servers_go(tmp_path: Path, temporary: Path) -> None:
    given = {name: url for name, url in GIVEN.items() if name in ("OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL")}
    with running(tmp_path, "--json", **given, TMPDIR=str(temporary)) as demo:
        eventually(lambda: demo.remember() and "Taking 5,000 orders" in demo.errors, 120)
        demo.process.send_signal(signal.SIGTERM)
        assert demo.wait(90) == 1
        assert demo.output == ""
        assert demo.left() == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("lost", "verdict"), [(0, "✓ Nothing was lost"), (3, "✗ Committed, yet missing")])
def test_people_read_the_verdict(lost: int, verdict: str) -> None:
    figures = Figures(**{**dict.fromkeys(KEYS, 0), "lost": lost})
    said = io.StringIO()
    Report(figures, KilledWorker("publish1", 3), 9, 0, undeliverable_is_dead=True).show(Console(file=said, width=100))
    assert verdict in said.getvalue()


def test_a_broker_that_it_cannot_use_is_refused(tmp_path: Path, postgres_url: str) -> None:
    given = {"OUTBOX_DATABASE_URL": postgres_url, "OUTBOX_BROKER_URL": "amqp://guest:secret@localhost//"}
    with running(tmp_path, **given) as demo:
        assert demo.wait() == 1
        assert "needs a redis:// server" in demo.errors
        assert "secret" not in demo.errors
        assert "Traceback" not in demo.errors
