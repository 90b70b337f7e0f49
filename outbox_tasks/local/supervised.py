"""A whole relay as our children: claim worker, publish workers, beat and Flower; restarted when they die."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

from outbox_tasks.local import guard
from outbox_tasks.local.commands import (
    BEAT_READY,
    FLOWER_READY,
    WORKER_READY,
    beat_argv,
    claim_worker_argv,
    flower_argv,
    flower_env,
    publish_worker_argv,
)
from outbox_tasks.local.errors import ServiceGaveUp
from outbox_tasks.local.processes import Child, Group, OnLine

READY_TIMEOUT = 180.0
STOP_TIMEOUT = 30.0
"""Above the hard time limit of a publish task: what is being sent may end."""

MONITOR_PORT = "OUTBOX_MONITOR_PORT"

MAX_RESTARTS = 5
STEADY_SECONDS = 60.0
"""A service that has run this long is not to blame for what it did before."""


@dataclass(frozen=True)
class Flower:
    """Where the dashboard listens, and its login."""

    port: int
    password: str


@dataclass
class Service:
    """One of the relay's processes: how it is started, and how it is doing."""

    name: str
    argv: list[str]
    ready: str
    env: Mapping[str, str]
    child: Child
    started: float
    restarts: int = 0
    due: float | None = None
    """When it is to be started again; None while it runs."""


class Relay:
    """Start with `start()` or as a context manager; call `supervise()` now and then."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        publishers: int = 1,
        concurrency: int = 1,
        pool: str = "prefork",
        flower: Flower | None = None,
        on_line: OnLine | None = None,
    ) -> None:
        self._env = dict(env)
        self._publishers = publishers
        self._concurrency = concurrency
        self._pool = pool
        self._flower = flower
        self._on_line = on_line
        self._group = Group()
        self._temporary: Path | None = None
        self.services: list[Service] = []

    def start(self) -> None:
        """Start all and wait until they are ready. Raises `ChildNotReady`."""
        # What a worker that is killed leaves behind goes with us.
        self._temporary = Path(mkdtemp(prefix="outbox-relay-"))
        guard.guard_directory(self._temporary)
        self._env["TMPDIR"] = str(self._temporary)
        try:
            # The last started is stopped first: beat, then the workers, then who watches them.
            if self._flower is not None:
                login = flower_env(self._flower.password)
                self._start("flower", flower_argv(self._flower.port), FLOWER_READY, login)
            for n in range(1, self._publishers + 1):
                argv = publish_worker_argv(n, self._concurrency, self._pool)
                self._start(f"publish{n}", argv, WORKER_READY)
            self._start("claim", claim_worker_argv(), WORKER_READY)
            self._start("beat", beat_argv(), BEAT_READY)
            for service in self.services:
                service.child.wait_for(service.ready, READY_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    def supervise(self, say: Callable[[str], None]) -> None:
        """Restart what has died, later each time. Raises `ServiceGaveUp` when that does not help."""
        for service in self.services:
            if service.due is not None:
                if time.monotonic() >= service.due:
                    self._restart(service)
            elif not service.child.alive:
                say(self._plan_restart(service))

    def stop(self) -> None:
        """Stop all in order; the workers end what they have begun."""
        try:
            for child in reversed(list(self._group)):
                child.ask_to_stop()
                if child.name == "beat":
                    child.stop()
            self._group.stop_all()
        finally:  # an exception on the way, such as a second Ctrl-C, ends the rest at once
            self._group.end_all()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                guard.release_directory(self._temporary)
                self._temporary = None

    def __iter__(self) -> Iterator[Service]:
        return iter(self.services)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, name: str, argv: list[str], ready: str, env: Mapping[str, str] | None = None) -> None:
        full_env = {**self._env, **(env or {})}
        if (port := full_env.get(MONITOR_PORT, "0")) != "0":
            full_env[MONITOR_PORT] = str(int(port) + len(self.services))  # several workers can't share one
        child = self._group.add(self._child(name, argv, full_env))
        self.services.append(Service(name, argv, ready, full_env, child, time.monotonic()))

    def _child(self, name: str, argv: list[str], env: Mapping[str, str]) -> Child:
        return Child.start(name, argv, env=env, on_line=self._on_line, stop_timeout=STOP_TIMEOUT)

    def _plan_restart(self, service: Service) -> str:
        now, code = time.monotonic(), service.child.returncode
        tail = "\n" + service.child.tail()
        if now - service.started > STEADY_SECONDS:
            service.restarts = 0
        if service.restarts == MAX_RESTARTS:
            raise ServiceGaveUp(name=service.name, times=service.restarts + 1, code=code, tail=tail)
        delay = 2.0**service.restarts
        service.due = now + delay
        service.restarts += 1
        count = f"{service.restarts} of {MAX_RESTARTS}"
        return f"{service.name} ended with exit code {code}; starting it again in {delay:g} s ({count})"

    def _restart(self, service: Service) -> None:
        service.child.end()  # with what it left behind, such as a pool whose worker was killed
        replacement = self._child(service.name, service.argv, service.env)
        service.child = self._group.replace(service.child, replacement)
        service.started, service.due = time.monotonic(), None
