"""pytest-celery's nodes and clusters over local child processes, in place of Docker containers.

A node of pytest-celery only asks its `container` for a few things; `Process` and `Server` have those. All of
`CeleryTestSetup`, the clusters and `CeleryTestWorker` works over them, except what is Docker itself: the vendors'
fixtures build images and volumes, and `get_running_processes_info` runs a script in the container.
"""

from __future__ import annotations

import json
import math
import os
import signal as signals
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import celery
import psutil
import redis
from pytest_celery import CeleryTestNode, CeleryTestWorker

from outbox_tasks.local.commands import (
    BEAT_READY,
    WORKER_READY,
    beat_argv,
    claim_worker_argv,
    publish_worker_argv,
)
from outbox_tasks.local.processes import Child, end_with_us
from outbox_tasks.settings import Settings
from tests.conftest import eventually

ROOT = Path(__file__).parents[2]

START_TIMEOUT, STOP_TIMEOUT = 60.0, 20.0

PLAIN = [sys.executable, "-m", "celery"]
"""How most commands begin. They are forks of a warm process, but for gevent: that changes what is not imported yet."""


class Forked(Child):
    """A process that the server of `warm` has started."""

    _child_created = False  # by subprocess, which must not look after it

    def __init__(self, name: str, pid: int, code: Path, log: Path, stop_timeout: float) -> None:
        self.name, self.pid, self._code, self.log, self.stop_timeout = name, pid, code, log, stop_timeout
        self.returncode: Any = None
        self._watcher = end_with_us(pid)

    def poll(self) -> int | None:
        with suppress(FileNotFoundError):
            self.returncode = int(self._code.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("celery", timeout or 0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Warm:
    """The server that forks Celery's processes. It ends with this process."""

    def __init__(self) -> None:
        self._codes = TemporaryDirectory(prefix="outbox-warm-", ignore_cleanup_errors=True)
        argv = [sys.executable, "-m", "tests.acceptance.warm", self._codes.name]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True)

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, stop_timeout: float
    ) -> Child:
        """Start `celery` with these arguments."""
        wanted = {"argv": ["celery", *argv], "env": dict(env), "cwd": str(cwd), "log": str(log)}
        log.touch(0o600)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(wanted), file=self._server.stdin, flush=True)
        pid = int(self._server.stdout.readline())
        child = Forked(name, pid, Path(self._codes.name, str(pid)), log, stop_timeout)
        child.argv = argv
        return child


warm = cache(Warm)


class Process:
    """A node's container, which here is a child process."""

    def __init__(self, name: str, argv: list[str], log: Path, env: Mapping[str, str], prompt: str) -> None:
        self.name = name
        self._fork = argv[:3] == PLAIN and "gevent" not in argv
        self.argv = argv
        self.ready_prompt = prompt
        self._log = log
        self._env = dict(env)
        self._former: list[Child] = []
        self._seen = 0
        self.child = self._start()

    def _start(self) -> Child:
        where: Any = {"cwd": self._log.parent, "log": self._log, "stop_timeout": STOP_TIMEOUT}
        if self._fork:
            return warm().start(self.name, self.argv[3:], {**os.environ, **self._env}, **where)
        return Child.start(self.name, self.argv, env=self._env, **where)

    @property
    def id(self) -> str:
        return socket.gethostname()

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def status(self) -> str:
        return "running" if self.child.alive else "exited"

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    def pool(self) -> list[psutil.Process]:
        """The processes of its prefork pool."""
        return psutil.Process(self.pid).children()

    def logs(self) -> str:
        """All that it wrote, over restarts too."""
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until it says so, since its last start."""

        def said() -> bool:
            assert self.child.alive, f"{self.name} ended with {self.child.returncode}\n{self.child.tail(40)}"
            return self.ready_prompt in self.logs()[self._seen :]

        return bool(eventually(said, START_TIMEOUT))

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Only the process itself; its children live on."""
        number = signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal)
        self.child.send_signal(number)
        if number == signals.SIGKILL:
            self.child.wait(60)

    def reload(self) -> None:
        """Nothing is cached."""

    def restart(self, timeout: float = 60.0) -> None:
        """Start it again. Children of a killed predecessor go on beside it, as they would."""
        if self.child.alive:
            self.child.stop()
        self._former.append(self.child)
        self._seen = len(self.logs())
        self.child = self._start()

    def teardown(self) -> None:
        """End it and all its children."""
        for child in (*self._former, self.child):
            child.end()

    def version(self) -> str:
        return str(celery.__version__)

    def log_level(self) -> str:
        return "INFO"

    def worker_name(self) -> str:
        """The first part of its node name."""
        if "-n" in self.argv:
            return self.argv[self.argv.index("-n") + 1].partition("@")[0]
        return "celery"

    def worker_queue(self) -> str:
        return self.argv[self.argv.index("-Q") + 1] if "-Q" in self.argv else ""


class Worker(CeleryTestWorker):  # type: ignore[misc]
    """A worker process."""

    container: Process

    @property
    def pid(self) -> int:
        return self.container.pid

    def hostname(self) -> str:
        """All processes are on one host."""
        return f"{self.worker_name}@{socket.gethostname()}"

    def wait_for_log(self, log: str, message: str = "", timeout: float = 60.0) -> None:
        """Without the pauses of a second in pytest-celery's own."""
        eventually(lambda: log in self.logs(), timeout)

    def freeze(self) -> None:
        """SIGSTOP to the process, and wait until it has stopped."""
        freeze(psutil.Process(self.pid))

    def thaw(self) -> None:
        self.container.kill("SIGCONT")


class Beat(CeleryTestNode):  # type: ignore[misc]
    """A beat process."""

    container: Process


class Server:
    """A broker node's container, which here is a Redis server that runs already."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url)
        self.id = self.name = "broker"
        self.status = "running"

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {"url": self.url, "host_url": self.url}

    def logs(self) -> str:
        return ""

    def ready(self) -> bool:
        return bool(self.client.ping())

    def teardown(self) -> None:
        self.client.close()


class Relay:
    """Starts processes of a relay with the same settings; all of them end with it."""

    def __init__(self, directory: Path, values: Mapping[str, Any], *paths: Path) -> None:
        self.values = dict(values)
        self.settings = Settings(**values)
        self.nodes: list[Worker | Beat] = []
        self._directory = directory
        self._numbers = count()  # of logs: a process that is taken off `nodes` has left its own, which says "ready"
        self.paths = paths

    def env(self, **values: Any) -> dict[str, str]:
        """The settings as a process takes them; None: not set."""
        texts = {
            f"OUTBOX_{name.upper()}": json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
            for name, value in {**self.values, **values}.items()
            if value is not None
        }
        path = os.pathsep.join(map(str, [*self.paths, ROOT]))
        return {"OUTBOX_CONFIG": os.devnull, "PYTHONPATH": path, **texts}

    def worker(self, argv: Sequence[str], **values: Any) -> Worker:
        """Start a worker, and don't wait for it."""
        node = Worker(self._process(f"worker{next(self._numbers)}", argv, WORKER_READY, values), None)
        self.nodes.append(node)
        return node

    def claim(self, name: str = "claim", **values: Any) -> Worker:
        return self.worker(claim_worker_argv(name), **values)

    def publish(self, n: int = 1, concurrency: int = 1, pool: str = "prefork", **values: Any) -> Worker:
        return self.worker(publish_worker_argv(n, concurrency, pool), **values)

    def beat(self, argv: Sequence[str] = (), **values: Any) -> Beat:
        node = Beat(self._process(f"beat{next(self._numbers)}", argv or beat_argv(), BEAT_READY, values))
        self.nodes.append(node)
        return node

    def _process(self, name: str, argv: Sequence[str], prompt: str, values: Mapping[str, Any]) -> Process:
        return Process(name, list(argv), self._directory / f"{name}.log", self.env(**values), prompt)

    def ready(self) -> Self:
        """Wait until all have started."""
        for node in self.nodes:
            node.ready()
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.teardown()


def freeze(process: psutil.Process) -> None:
    """SIGSTOP, and wait until it has stopped."""
    process.suspend()
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)
