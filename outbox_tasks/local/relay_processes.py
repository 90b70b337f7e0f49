"""A relay's processes: claim worker, publish workers, beat, and others beside them. What dies is started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from outbox_tasks.local.commands import BEAT_READY, WORKER_READY, beat_argv, claim_worker_argv, publish_worker_argv
from outbox_tasks.local.errors import ServiceGaveUp
from outbox_tasks.local.processes import Child, Group, OnLine
from outbox_tasks.local.watcher import WatchedDirectory

READY_TIMEOUT = 180.0
STOP_TIMEOUT = 30.0
"""Above the hard time limit of a publish task: sends under way may end."""

MONITOR_PORT = "OUTBOX_MONITOR_PORT"

MAX_RESTARTS = 5
STEADY_SECONDS = 60.0
"""A service that has run this long has all its restarts again."""


class Program(NamedTuple):
    """What a service runs."""

    name: str
    argv: list[str]
    ready: str
    """What it says when it has started."""
    env: Mapping[str, str] = {}


@dataclass
class Service:
    """One of the relay's processes: how it is started, and how it is doing."""

    name: str
    options: dict[str, Any]
    child: Child
    started: float
    restarts: int = 0
    due: float | None = None
    """When it is to be started again; None while it runs."""


class Relay:
    """Start it with `start()` or as a context manager; call `supervise()` now and then."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        claimers: int = 1,
        publishers: int = 1,
        concurrency: int = 1,
        beside: Sequence[Program] = (),
        on_line: OnLine | None = None,
        logs: Path | None = None,
    ) -> None:
        self._env, self._on_line, self._logs = dict(env), on_line, logs
        workers = {f"publish{n}": publish_worker_argv(n, concurrency) for n in range(1, publishers + 1)}
        workers |= {name: claim_worker_argv(name) for name in ["claim", *(f"claim{n}" for n in range(2, claimers + 1))]}
        self._programs = [Program(name, argv, WORKER_READY) for name, argv in workers.items()]
        self._programs += [Program("beat", beat_argv(), BEAT_READY), *beside]
        self._group = Group()
        self._temporary: WatchedDirectory | None = None
        self.services: list[Service] = []

    def start(self) -> None:
        """Start all and wait until they are ready. Raises `ChildNotReady`."""
        self._temporary = WatchedDirectory("relay")  # a killed worker leaves files behind
        try:
            self.services = [self._started(number, program) for number, program in enumerate(self._programs)]
            for service, program in zip(self.services, self._programs, strict=True):
                service.child.wait_for(program.ready, READY_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    def supervise(self, say: Callable[[str], None]) -> None:
        """Start again what has died, later each time. Raises `ServiceGaveUp` when that does not help."""
        for service in self.services:
            if service.due is not None:
                if time.monotonic() >= service.due:
                    service.child.end()
                    self.replace(service)
            elif not service.child.alive:
                say(self._plan_restart(service))

    def replace(self, service: Service) -> Child:
        """Start a service again at once, beside what is left of its former process, which the caller ends."""
        former = service.child
        service.child = self._group.start(former.name, former.argv, **service.options)
        service.started, service.due = time.monotonic(), None
        return former

    def stop(self) -> None:
        """Stop all, beat first. Workers finish their current task."""
        try:
            with self._group:
                for child in reversed(list(self._group)):
                    child.ask_to_stop()
                    if child.name == "beat":
                        child.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    def __iter__(self) -> Iterator[Service]:
        return iter(self.services)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self, number: int, program: Program) -> Service:
        assert self._temporary is not None
        env = {**self._env, "TMPDIR": self._temporary.name, **program.env}
        if (port := env.get(MONITOR_PORT, "0")) != "0":
            env[MONITOR_PORT] = str(int(port) + number)  # several workers can't share one
        log = self._logs and self._logs / f"{program.name}.log"
        options = {"env": env, "on_line": self._on_line, "log": log, "stop_timeout": STOP_TIMEOUT}
        child = self._group.start(program.name, program.argv, **options)
        return Service(program.name, options, child, time.monotonic())

    def _plan_restart(self, service: Service) -> str:
        now, code = time.monotonic(), service.child.returncode
        if now - service.started > STEADY_SECONDS:
            service.restarts = 0
        if service.restarts == MAX_RESTARTS:
            tail = "\n" + service.child.tail()
            raise ServiceGaveUp(name=service.name, times=service.restarts + 1, code=code, tail=tail)
        delay = 2.0**service.restarts
        service.due = now + delay
        service.restarts += 1
        count = f"{service.restarts} of {MAX_RESTARTS}"
        return f"{service.name} ended with exit code {code}; starting it again in {delay:g} s ({count})"
