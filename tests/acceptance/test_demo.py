"""`outbox-tasks demo` as people start it: what it counts, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from rich.console import Console

from outbox_tasks.local.demo_report import Report, report_of
from tests.conftest import eventually

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


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo and its children make their temporary directories."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


def test_every_committed_order_arrives_and_none_that_was_rolled_back(tmp_path: Path, temporary: Path) -> None:
    # Settings that are not meant for the demo, and a broker that Celery would prefer.
    others = {"OUTBOX_SINGLES": "7", "OUTBOX_DATABASE_SCHEMA": "nowhere", "CELERY_BROKER_URL": "redis://nowhere"}
    with running(tmp_path, "--json", "--orders", str(ORDERS), TMPDIR=str(temporary), **others) as demo:
        code = demo.wait()
        assert code == 0, demo.errors
        figures = json.loads(demo.output)
        assert (figures["committed"], figures["rolled_back"]) == (ORDERS, ORDERS // 10)
        assert (figures["delivered"], figures["dead"]) == (ORDERS - 1, 1)
        assert {figures[name] for name in ("lost", "ghosts", "wrong_dead", "unexplained", "unfinished")} == {0}
        assert figures["retried"] > 0
        assert figures["duplicates"] >= figures["after_kill"] >= 0
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert f"messages in its hands: {figures['killed']}" in demo.errors
        assert len(demo.family) > 5
        assert demo.left() == []
    assert list(temporary.iterdir()) == [], "of a worker that is killed, too"


def test_when_it_is_stopped_in_the_middle_it_and_its_servers_go(tmp_path: Path, temporary: Path) -> None:
    with running(tmp_path, "--json", TMPDIR=str(temporary)) as demo:
        eventually(lambda: demo.remember() and "Taking 5,000 orders" in demo.errors, 120)
        demo.process.send_signal(signal.SIGTERM)
        assert demo.wait(90) == 1
        assert demo.output == ""
        assert demo.left() == []
    assert list(temporary.iterdir()) == []


def shown(report: Report) -> str:
    output = io.StringIO()
    report.show(Console(file=output, width=100))
    return output.getvalue()


class Shop:
    """What the demo's application has noted: order 3 can't be delivered, 4 is rolled back."""

    committed: ClassVar = {"1": 10.0, "2": 20.0, "3": 30.0, "5": 50.0}
    rolled_back: ClassVar = {"4"}
    undeliverable = "3"


MESSAGES: dict[str, tuple[str, str | None]] = {
    "1": ("sent", None), "2": ("sent", "unsettled"), "3": ("dead", "bad"), "5": ("sent", "connection"),
}  # fmt: skip
ARRIVALS = [("1", 10.5), ("2", 20.1), ("2", 29.0), ("5", 50.1), ("5", 51.0), ("5", 52.0)]


def report(messages: Any = MESSAGES, arrivals: Any = ARRIVALS, killed: int | None = 5) -> Report:
    return report_of(Shop, messages, arrivals, 2.0, killed, 9)  # type: ignore[arg-type]


def test_people_read_what_happened_and_the_verdict() -> None:
    good = report()
    assert (good.problems, good.not_shown) == ([], [])
    assert (good.p50_ms, good.p99_ms, good.per_second, good.retried) == (100.0, 500.0, 1.5, 2)
    assert re.search(r"its answer was lost +2\n.*\(messages in its hands: 5\) +1\n", shown(good))
    assert "✓ Nothing was lost" in shown(good)


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        (report(arrivals=ARRIVALS[1:]), "✗ Committed, yet missing at the destination: 1"),
        (report(arrivals=[*ARRIVALS, ("4", 40.0)]), "✗ Delivered, though nobody had committed them: 1"),
        (report(arrivals=[*ARRIVALS, ("1", 40.0)]), "✗ Arrived more than once, without a recorded cause: 1"),
        (report({**MESSAGES, "2": ("dead", "bad")}), "✗ The message that can't be delivered is not the one dead"),
        (report({**MESSAGES, "3": ("retrying", "bad")}), "! Not shown: 1 messages were still on their way"),
        (report(killed=None), "! Not shown: No publish worker was met"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_verdict_says_what_is_wrong_and_what_could_not_be_shown(wrong: Report, verdict: str) -> None:
    assert verdict in shown(wrong)
    assert ("✓" in shown(wrong)) is verdict.startswith("!")
