"""What claims and drains ask about destinations: which ones get nothing now, and how much of the cluster each may
take."""

from __future__ import annotations

import json
import time
from typing import Any

from sqlalchemy import Engine

from outbox_tasks.database.activity import LATE
from outbox_tasks.database.connection import Database
from outbox_tasks.relay.store.limits import Limits
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable

COUNT_EVERY = 5.0
"""Seconds after which the processes that send are counted again."""

SLOW = 0.25
"""Seconds after which a send counts as slow."""


class Traffic(Database):
    """The statements about destinations."""

    def __init__(self, engine: Engine, settings: Settings, limits: Limits) -> None:
        super().__init__(engine, settings)
        self._limits = limits
        self._counted_at, self._processes = float("-inf"), 0

    def slots(self, destination: str) -> int:
        """How many drains of a destination, or slow sends to it, may be at work at once. A destination without a
        `concurrency` of its own leaves one process to the others."""
        own = self._limits.of(destination).concurrency
        if own is not None:
            return own
        others = len(self.settings.destinations) > 1
        return max(1, self._count_processes() - others)

    def _count_processes(self) -> int:
        now = time.monotonic()
        if now >= self._counted_at + COUNT_EVERY:
            self._processes = int(self.ask("traffic/processes.sql", late=LATE)[0].count)
            self._counted_at = now
        return self._processes

    def granted(self, destination: str, most: int) -> int:
        """How many of `most` messages may be taken now: those that the destination's rate allows. Put back what was not
        needed."""
        rate = self._limits.of(destination).rate_limit
        if rate is None or not most:
            return most
        asked = json.dumps([{"destination": destination, "rate": rate, "size": most}])
        rows = self.ask("traffic/metered.sql", metered=asked)
        if not rows:  # the destination has no row yet
            self.ask("traffic/meters.sql", names=[destination])
            rows = self.ask("traffic/metered.sql", metered=asked)
        return int(rows[0].granted) if rows else 0

    def put_back(self, destination: str, count: int) -> None:
        """Give back what was granted and not needed."""
        if count > 0 and self._limits.of(destination).rate_limit is not None:
            spare = json.dumps([{"destination": destination, "size": count}])
            self.ask("traffic/unspent.sql", spare=spare)

    def outstanding(self) -> dict[str, tuple[int, int]]:
        """Of each destination, how many singles and batches are on their way, and of how many the send is slow."""
        rows = self.ask("claim/outstanding.sql", patience=SLOW, hold=self.settings.queue_lease)
        return {row.destination: (row.leases, row.slow) for row in rows}

    def probe(self, tokens: dict[str, str]) -> set[str]:
        """Let a message with this token try whether its destination answers. Returns the destinations that may be
        tried."""
        asked = [{"destination": name, "token": token} for name, token in sorted(tokens.items())]
        rows = self.ask("claim/probe.sql", probe=json.dumps(asked), hold=self.settings.queue_lease)
        return {row.name for row in rows}

    def untried(self, destination: str, token: str) -> None:
        """No message was there to try."""
        self.ask("traffic/untried.sql", destination=destination, token=token)

    def tripped(self, destination: str, lease: str, code: str | None, error: str | None) -> bool:
        """Count a send that found the destination out of reach. Returns whether the circuit is open now."""
        settings = self.settings
        outage = {
            "destination": destination,
            "token": lease,
            "code": storable(code),
            "error": storable(error),
            "enough": settings.breaker_failures,
            "pause": settings.breaker_pause,
            "longest": settings.breaker_pause_max,
        }
        rows = self.ask("traffic/tripped.sql", **outage)
        if not rows:  # the destination has no row yet
            self.ask("traffic/meters.sql", names=[destination])
            rows = self.ask("traffic/tripped.sql", **outage)
        return bool(rows and rows[0].open)

    def recovered(self, destination: str) -> None:
        """Close the circuit: the destination has answered."""
        self.ask("traffic/recovered.sql", destination=destination)

    def states(self) -> list[Any]:
        """The destinations that were in trouble or paused: see traffic/states.sql."""
        return list(self.ask("traffic/states.sql"))
