"""A relay's processes: claim worker, publish workers, beat, the page and Flower. Those that die are started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from outbox_tasks.local.commands import (
    BEAT_READY,
    FLOWER_READY,
    WEB_READY,
    WORKER_READY,
    beat_argv,
    claim_worker_argv,
    flower_argv,
    flower_env,
    publish_worker_argv,
    web_argv,
    web_env,
)
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


@dataclass(frozen=True)
class Flower:
    """Where the dashboard listens, and its login."""

    port: int
    password: str


@dataclass(frozen=True)
class Web:
    """Where the page listens. Without a password, those people may sign in whom the settings name."""

    port: int
    password: str | None


@dataclass
class Service:
    """One of the relay's processes: how it is started, and how it is doing."""

    name: str
    ready: str
    """What it says when it has started."""
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
        pool: str = "prefork",
        flower: Flower | None = None,
        web: Web | None = None,
        on_line: OnLine | None = None,
        logs: Path | None = None,
    ) -> None:
        self._env = dict(env)
        self._claimers = claimers
        self._publishers = publishers
        self._concurrency = concurrency
        self._pool = pool
        self._flower = flower
        self._web = web
        self._on_line = on_line
        self._logs = logs
        self._group = Group()
        self._temporary: WatchedDirectory | None = None
        self.services: list[Service] = []

    def start(self) -> None:
        """Start all and wait until they are ready. Raises `ChildNotReady`."""
        self._temporary = WatchedDirectory("relay")  # a killed worker leaves files behind
        self._env["TMPDIR"] = self._temporary.name
        try:
            # The last started is stopped first: the page, beat, then the workers, then Flower.
            if self._flower is not None:
                login = flower_env(self._flower.password)
                self._start("flower", flower_argv(self._flower.port), FLOWER_READY, login)
            for n in range(1, self._publishers + 1):
                argv = publish_worker_argv(n, self._concurrency, self._pool)
                self._start(f"publish{n}", argv, WORKER_READY)
            for name in ["claim", *(f"claim{n}" for n in range(2, self._claimers + 1))]:
                self._start(name, claim_worker_argv(name), WORKER_READY)
            self._start("beat", beat_argv(), BEAT_READY)
            if self._web is not None:
                self._start("web", web_argv(), WEB_READY, web_env(self._web.port, self._web.password))
            for service in self.services:
                service.child.wait_for(service.ready, READY_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    def supervise(self, say: Callable[[str], None]) -> None:
        """Start again what has died, later each time. Raises `ServiceGaveUp` when that does not help."""
        for service in self.services:
            if service.due is not None:
                if time.monotonic() >= service.due:
                    self._restart(service)
            elif not service.child.alive:
                say(self._plan_restart(service))

    def replace(self, service: Service) -> Child:
        """Start a service again at once, beside what is left of its former process, which the caller ends."""
        former = service.child
        service.child = self._group.start(former.name, former.argv, **service.options)
        service.started, service.due = time.monotonic(), None
        return former

    def stop(self) -> None:
        """Stop all in order. Workers finish their current task."""
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

    def _start(self, name: str, argv: list[str], ready: str, env: Mapping[str, str] | None = None) -> None:
        full_env = {**self._env, **(env or {})}
        if (port := full_env.get(MONITOR_PORT, "0")) != "0":
            full_env[MONITOR_PORT] = str(int(port) + len(self.services))  # several workers can't share one
        options: dict[str, Any] = {"env": full_env, "on_line": self._on_line, "stop_timeout": STOP_TIMEOUT}
        if self._logs is not None:
            options["log"] = self._logs / f"{name}.log"
        child = self._group.start(name, argv, **options)
        self.services.append(Service(name, ready, options, child, time.monotonic()))

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
        service.child = self._group.restart(service.child, **service.options)
        service.started, service.due = time.monotonic(), None
