"""The processes of the application: started, killed, and started again."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from lab.soak.options import Options
from outbox_tasks.local.processes import Child

APPLICATIONS = 2

KILLED = (0, -9, -15)
"""How a process of the application may end. Anything else is a finding."""


class Applications:
    """The processes of the application."""

    def __init__(self, options: Options, env: Mapping[str, str]) -> None:
        self._options, self._env = options, dict(env)
        self._started = 0
        self.children: list[Child] = []
        self.remarks: list[str] = []

    def start(self) -> None:
        """One more."""
        self._started += 1
        seed = self._options.seed * 1000 + self._started
        arguments = [str(seed), str(self._options.directory), str(self._options.rate / APPLICATIONS)]
        argv = [sys.executable, "-m", "lab.soak.application", *arguments]
        name = f"application{self._started}"
        log = self._options.directory / f"{name}.log"
        self.children.append(Child.start(name, argv, env=self._env, log=log, stop_timeout=15))

    def supervise(self) -> None:
        """Start others in the place of those that have ended."""
        for child in [child for child in self.children if not child.alive]:
            child.end()
            self.children.remove(child)
            if child.returncode not in KILLED:
                lines = child.tail(3).strip().splitlines()
                self.remarks.append(f"{child.name} ended with exit code {child.returncode}: {lines[-1:]}")
            self.start()

    def stop(self) -> None:
        for child in self.children:
            child.ask_to_stop()
        for child in self.children:
            child.stop()
