"""Counterparts whose server is ours to start, to stop and to kill: what they have in common."""

from __future__ import annotations

import socket
import sys
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import ClassVar

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.conftest import eventually
from tests.contract.counterparts import Counterpart

ROOT = Path(__file__).parents[2]


def listens(port: int) -> bool:
    """Whether anybody does, on this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


class ChildCounterpart(Counterpart):
    """A server that is one child process of ours, at one port."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.child: Child | None = None
        self._directory: TemporaryDirectory[str] | None = None

    @abstractmethod
    def launch(self) -> Child:
        """Start the process."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does by now."""

    @abstractmethod
    def url_on(self, port: int, place: str) -> str:
        """The destination's URL of a place at this port."""

    def url(self, place: str) -> str:
        return self.url_on(self.port, place)

    def url_at(self, port: int) -> str:
        return self.url_on(port, self.place)

    @property
    def directory(self) -> Path:
        """For its files; they go when it is stopped."""
        if self._directory is None:
            self._directory = TemporaryDirectory(prefix=f"outbox-{self.name}-", ignore_cleanup_errors=True)
        return Path(self._directory.name)

    def start(self) -> None:
        if self.child is not None:
            if self.child.alive:
                return
            self.child.end()
        child = self.child = self.launch()

        def up() -> bool:
            assert child.alive, child.tail()
            return self.answers()

        eventually(up, 180)

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        # The first of its threads may be gone before the others are: only what was waited for is dead.
        assert self.child is not None
        self.child.kill()

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid


class ProgramCounterpart(ChildCounterpart):
    """A program of our own: it is given the port, and says when it is ready."""

    program: ClassVar[ModuleType]
    arguments: Sequence[object] = ()

    def launch(self) -> Child:
        argv = [sys.executable, "-m", self.program.__name__, str(self.port), *map(str, self.arguments)]
        return Child.start(self.name, argv, cwd=ROOT)

    def answers(self) -> bool:
        return self.child is not None and "ready" in self.child.tail()
