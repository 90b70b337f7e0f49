"""The processes of a relay: claim worker, publish workers, beat, and what runs beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from outbox_tasks.local.commands import BEAT_READY, WORKER_READY, beat_argv, claim_worker_argv, publish_worker_argv
from outbox_tasks.local.processes import Child, Group
from outbox_tasks.local.watcher import WatchedDirectory

READY_SECONDS = 180
STOP_SECONDS = 30
"""Above the hard time limit of a publish task: sends under way may end."""

MONITOR_PORT = "OUTBOX_MONITOR_PORT"


class Program(NamedTuple):
    """What one of the processes runs."""

    name: str
    argv: list[str]
    ready: str
    """What it says when it has started."""
    env: Mapping[str, str] = {}


class Relay(Group):
    """The processes, in the order of their start. They start and stop with the context."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        claimers: int = 1,
        publishers: int = 1,
        concurrency: int = 1,
        beside: Sequence[Program] = (),
        logs: Path | None = None,
    ) -> None:
        """`beside` starts when the workers are ready: Flower asks them at once. `logs`: where to keep what they say."""
        super().__init__()
        self._env, self._logs, self._beside = env, logs, beside
        workers = {f"publish{n}": publish_worker_argv(n, concurrency) for n in range(1, publishers + 1)}
        workers |= {name: claim_worker_argv(name) for name in ["claim", *(f"claim{n}" for n in range(2, claimers + 1))]}
        self._workers = [Program(name, argv, WORKER_READY) for name, argv in workers.items()]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            temporary = stack.enter_context(WatchedDirectory("relay"))  # a killed worker leaves files behind
            stack.push(super().__exit__)
            for programs in ([*self._workers, Program("beat", beat_argv(), BEAT_READY)], self._beside):
                started = [(self._start(program, temporary), program.ready) for program in programs]
                for child, ready in started:
                    child.wait_for(ready, READY_SECONDS)
            self._stack = stack.pop_all()
        return self

    def _start(self, program: Program, temporary: str) -> Child:
        env = {**self._env, "TMPDIR": temporary, **program.env}
        if (port := env.get(MONITOR_PORT, "0")) != "0":
            env[MONITOR_PORT] = str(int(port) + len(self))  # several workers can't share one
        log = Path(self._logs or temporary, f"{program.name}.log")
        return self.start(program.name, program.argv, env=env, log=log, stop_timeout=STOP_SECONDS)

    def check(self) -> None:
        """Raises `HasEnded` if one of them has ended."""
        for child in self:
            child.check()

    def stop(self) -> None:
        """Stop all. Workers finish their current task."""
        for child in reversed(self):  # beat before the workers
            child.ask_to_stop()
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.stop()
