"""How much memory the relay's processes take, from their start to their end."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from lab.soak.verdict import Memory
from outbox_tasks.local.relay_processes import Relay

EVERY = 5.0
"""Seconds between two looks: to find the children of a process takes a look at all that the machine runs."""

STEADY = 15.0
"""Seconds after the first look at a process. By then it has imported and connected."""


@dataclass
class _Seen:
    name: str
    since: float
    first: int = 0
    last: int = 0
    at: float = 0.0


class Memories:
    """Looks at the main process of each worker and at its pool."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._looked = -EVERY

    def look(self, relay: Relay) -> None:
        """Now, unless it has looked a moment ago."""
        if time.monotonic() < self._looked + EVERY:
            return
        self._looked = time.monotonic()
        for service in relay:
            with suppress(psutil.Error):
                main = psutil.Process(service.child.pid)
                self._look(main, service.name)
                for child in main.children():
                    self._look(child, f"{service.name}, pool")

    def _look(self, process: psutil.Process, name: str) -> None:
        now = time.monotonic()
        seen = self._seen.setdefault(process.pid, _Seen(name, now))
        if now - seen.since >= STEADY:
            seen.last, seen.at = process.memory_info().rss, now
            seen.first = seen.first or seen.last

    def largest(self, count: int = 5) -> list[Memory]:
        """The processes that grew most."""
        found = [
            Memory(one.name, one.first, one.last, round(one.at - one.since))
            for one in self._seen.values()
            if one.first and one.last > one.first
        ]
        return sorted(found, key=lambda one: one.first - one.last)[:count]
