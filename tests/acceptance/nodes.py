"""Workers and beat of a relay: pytest-celery's nodes, over child processes in place of Docker containers."""

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

import psutil
from pytest_celery import CeleryTestWorker

from outbox_tasks.local.processes import Child, end_with_us
from outbox_tasks.local.relay import (
    BEAT_READY,
    WORKER_READY,
    beat_argv,
    claim_worker_argv,
    publish_worker_argv,
)
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
    """What a node asks of its container. Here that is a child process, and its log."""

    def __init__(self, argv: list[str], log: Path, env: Mapping[str, str], prompt: str) -> None:
        self.argv, self._log, self._env, self._prompt = argv, log, dict(env), prompt
        self.name = log.stem
        self._former: list[Child] = []
        self._seen = 0
        self.child = self._start()

    def _start(self) -> Child:
        where: Any = {"cwd": self._log.parent, "log": self._log, "stop_timeout": STOP_TIMEOUT}
        if self.argv[:3] == PLAIN and "gevent" not in self.argv:
            return warm().start(self.name, self.argv[3:], {**os.environ, **self._env}, **where)
        return Child.start(self.name, self.argv, env=self._env, **where)

    @property
    def status(self) -> str:
        return "running" if self.child.alive else "exited"

    def logs(self) -> str:
        """All that it wrote, over restarts too."""
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until it says so, since its last start."""

        def is_ready() -> bool:
            assert self.child.alive, f"{self.name} ended with {self.child.returncode}\n{self.child.tail(40)}"
            return self._prompt in self.logs()[self._seen :]

        return bool(eventually(is_ready, START_TIMEOUT))

    def kill(self, signal: str) -> None:
        """Only the process itself; its children live on."""
        self.child.send_signal(signals.Signals[signal])
        if signal == "SIGKILL":
            self.child.wait(60)

    def restart(self, timeout: float) -> None:
        """Start it again. Children of a killed predecessor go on beside it, as they would."""
        if self.child.alive:
            self.child.stop()
        self._former.append(self.child)
        self._seen = len(self.logs())
        self.child = self._start()

    def reload(self) -> None:
        """Docker's containers are read again; a process is always as it is."""

    def teardown(self) -> None:
        """End it and all its children."""
        for child in (*self._former, self.child):
            child.end()


class Node(CeleryTestWorker):
    """A worker or beat. What is not said here is pytest-celery's."""

    container: Process

    @property
    def child(self) -> Child:
        return self.container.child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.alive

    def hostname(self) -> str:
        """The worker's name. All are on this host."""
        argv = self.container.argv
        name = argv[argv.index("-n") + 1] if "-n" in argv else "celery@%h"
        return name.replace("%h", socket.gethostname())

    def pool(self) -> list[psutil.Process]:
        """The processes of its prefork pool."""
        return psutil.Process(self.pid).children()


class Relay:
    """Starts processes of a relay with the same settings; all of them end with it."""

    def __init__(self, directory: Path, values: Mapping[str, Any], *paths: Path) -> None:
        self.values = dict(values)
        self.settings = Settings(**values)
        self.nodes: list[Node] = []
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

    def worker(self, argv: Sequence[str], **values: Any) -> Node:
        """Start a worker, and don't wait for it."""
        return self._start("worker", argv, WORKER_READY, values)

    def claim(self, name: str = "claim", **values: Any) -> Node:
        return self.worker(claim_worker_argv(name), **values)

    def publish(self, n: int = 1, concurrency: int = 1, pool: str = "prefork", **values: Any) -> Node:
        return self.worker(publish_worker_argv(n, concurrency, pool), **values)

    def beat(self, argv: Sequence[str] = (), **values: Any) -> Node:
        return self._start("beat", argv or beat_argv(), BEAT_READY, values)

    def _start(self, name: str, argv: Sequence[str], prompt: str, values: Mapping[str, Any]) -> Node:
        log = self._directory / f"{name}{next(self._numbers)}.log"
        self.nodes.append(Node(Process(list(argv), log, self.env(**values), prompt), None))
        return self.nodes[-1]

    def ready(self) -> Self:
        """Wait until all have started."""
        for node in self.nodes:
            node.ready()
        return self

    def end(self, *nodes: Node) -> None:
        """End these, and forget them."""
        for node in nodes:
            node.teardown()
            self.nodes.remove(node)

    def close(self) -> None:
        self.end(*self.nodes)


def freeze(process: psutil.Process) -> None:
    """SIGSTOP, and wait until it has stopped."""
    process.suspend()
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)
