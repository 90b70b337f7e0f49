"""The processes of a relay: their command lines, and claim worker, publish workers, beat and what runs beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Group
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE

WORKER_READY, BEAT_READY, FLOWER_READY, WEB_READY = " ready.", "beat: Starting...", "Visit me at", "The page is at"
"""What each says when it has started, for `Child.wait_for`."""

CELERY = (sys.executable, "-m", "celery", "-A", "outbox_tasks")

ON_ITS_OWN = ("--without-gossip", "--without-mingle")
"""Workers need to know nothing of each other. Otherwise each would wake up for the heartbeats of the others, and wait a
second for them when it starts."""

FLOWER_COLUMNS = "name,uuid,state,args,retries,eta,received,runtime,worker"
"""The arguments say event type, destination and attempt. The uuid is the message's id, the ETA the time of its next
attempt."""


def outbox_tasks_argv(*arguments: str) -> list[str]:
    """Our own command line."""
    return [sys.executable, "-m", "outbox_tasks", *arguments]


def _worker(queues: str, name: str, *options: str) -> list[str]:
    return [*CELERY, "worker", "-Q", queues, "-n", f"{name}@%h", *options, *ON_ITS_OWN, "-E", "-l", "INFO"]


def claim_worker_argv(name: str = "claim") -> list[str]:
    """The worker that claims and maintains. One process is enough, without a pool."""
    return _worker(f"{CLAIM_QUEUE},{MAINTAIN_QUEUE}", name, "-P", "solo")


def publish_worker_argv(n: int = 1, concurrency: int = 1, pool: str = "prefork") -> list[str]:
    """The n-th worker that publishes and drains. Time limits need the prefork pool."""
    return _worker(f"{PUBLISH_QUEUE},{DRAIN_QUEUE}", f"publish{n}", "-c", str(concurrency), "-P", pool)


def feed_worker_argv(concurrency: int = 2) -> list[str]:
    """The worker that copies feeds. A source that does not answer holds up one of its processes for some seconds."""
    return _worker(FEED_QUEUE, "feed", "-c", str(concurrency))


def beat_argv() -> list[str]:
    """Beat."""
    return [*CELERY, "beat", "-l", "INFO"]


def flower_argv(port: int) -> list[str]:
    """Flower, on loopback only; use it with `flower_env`."""
    return [*CELERY, "flower", f"--address={LOOPBACK}", f"--port={port}", f"--tasks-columns={FLOWER_COLUMNS}"]


def flower_env(password: str, user: str = "outbox") -> dict[str, str]:
    """Flower's login, as variables: everybody on the machine can read a command line."""
    return {"FLOWER_BASIC_AUTH": f"{user}:{password}"}


def web_argv(port: int) -> list[str]:
    """The page, on loopback only; use it with `web_env`."""
    return outbox_tasks_argv("web", "--host", LOOPBACK, "--port", str(port))


def web_env(password: str | None, user: str = "outbox") -> dict[str, str]:
    """The page's only user, who may do everything. Without a password: those of the settings."""
    users = {user: {"password": password, "role": "act"}}
    return {} if password is None else {"OUTBOX_WEB_USERS": json.dumps(users)}


READY_SECONDS = 180
STOP_SECONDS = 30
"""Above the hard time limit of a publish task: sends under way may end."""


class Program(NamedTuple):
    """What one of the processes runs."""

    name: str
    argv: list[str]
    ready: str
    """What it says when it has started."""
    env: Mapping[str, str] = {}


def relay_programs(publishers: int = 1, concurrency: int = 1, claimers: int = 1) -> list[Program]:
    """Those of a relay; beat comes last, so it stops first."""
    workers = {f"publish{n}": publish_worker_argv(n, concurrency) for n in range(1, publishers + 1)}
    workers |= {name: claim_worker_argv(name) for name in ["claim", *(f"claim{n}" for n in range(2, claimers + 1))]}
    return [*(Program(*worker, WORKER_READY) for worker in workers.items()), Program("beat", beat_argv(), BEAT_READY)]


class Relay(Group):
    """The processes, in the order of their start. They stop with the context, all at once."""

    def __init__(self, env: Mapping[str, str], logs: Path | None = None) -> None:
        """`logs`: where to keep what they say."""
        super().__init__()
        self._env, self._logs = env, logs

    def run(self, *programs: Program) -> None:
        """Start them side by side, and wait until all are ready."""
        temporary = self._temporary.name
        started = []
        for name, argv, ready, env in programs:
            log = Path(self._logs or temporary, f"{name}.log")
            env = {**self._env, "TMPDIR": temporary, **env}
            started.append((self.start(name, argv, env=env, log=log, stop_timeout=STOP_SECONDS), ready))
        for child, ready in started:
            child.wait_for(ready, READY_SECONDS)

    def __enter__(self) -> Self:
        # A killed worker leaves files behind.
        self._temporary = TemporaryDirectory(prefix="outbox-relay-", ignore_cleanup_errors=True)
        return self

    def stop(self) -> None:
        """Stop all. Workers finish their current task."""
        try:
            for child in reversed(self):
                child.ask_to_stop()
            super().__exit__()
        finally:
            self._temporary.cleanup()

    def __exit__(self, *_: object) -> None:
        self.stop()
