"""The processes of a relay: claim worker, publish workers, beat, and what runs beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from outbox_tasks.local.commands import BEAT_READY, WORKER_READY, beat_argv, claim_worker_argv, publish_worker_argv
from outbox_tasks.local.processes import Group

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
