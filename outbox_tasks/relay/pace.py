"""How much a claim may lead the publish workers: no more than they can begin before its leases run out."""

from __future__ import annotations

import time

from outbox_tasks.settings import Settings

SHORT = 4
"""So many full bundles in the queue are few: they say nothing about the workers' rate, and are always allowed."""

MEASURED = 1.0
"""Seconds between two looks at the queue that tell the rate."""


class Pace:
    """What the publish workers take from the queue, as the claims of this process see it. Bundles that others put in
    make it too low, never too high. It counts each bundle as a full one, like the queue's length."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._most = float(settings.max_in_flight)
        self._began = self._queued = self._sent = 0.0

    def sent(self, bundles: int) -> None:
        """A claim has put so many bundles into the queue."""
        self._sent += bundles * self._settings.bundle_size

    def most(self, queued: int) -> int:
        """How many messages may wait in the queue, of which now has `queued`: so many that they wait for half of their
        leases. While the queue is short, the workers can do more than is known: then it is twice as many each time."""
        settings, now = self._settings, time.monotonic()
        short = min(SHORT * settings.bundle_size, settings.max_in_flight)
        if queued < short:
            self._most = min(2 * self._most, settings.max_in_flight)
            self._began = 0.0
        elif not self._began:
            self._began, self._queued, self._sent = now, queued, 0.0
        elif now >= self._began + MEASURED:
            rate = (self._queued + self._sent - queued) / (now - self._began)
            self._most = min(max(rate * settings.queue_lease / 2, short), settings.max_in_flight)
            self._began, self._queued, self._sent = now, queued, 0.0
        return int(self._most)
