"""The settings of the pipe: how messages travel, and the time limits that follow from them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from outbox_tasks.settings.destination import Count, Destination, Seconds, SecondsOrZero, Singles

DRAIN_SECONDS = 5.0
"""A drain ends after so many seconds, so that a worker can be stopped, and others have their turn."""

USUAL_STATEMENT_SECONDS = 3.0
"""Seconds that a statement may take if the relay sets no limit: the limit that its role has then."""


class PipeSettings(BaseModel):
    """A part of `Settings`. Times are in seconds."""

    destinations: dict[str, Destination] = Field(default_factory=dict)
    """Where messages can go, by name."""
    claim_interval: Seconds = 1.0
    """How often beat wakes the claim; what the nudge missed waits this long at most."""
    singles: Singles = 50
    """How many due messages of a destination travel as Celery tasks of their own. If more are due, drains send them in
    batches. "all": always singly; 0: never, and a commit wakes a drain, for the lowest latency."""
    nudge: bool = True
    """Wake the claim right after a commit, so that messages need not wait for beat."""

    send_timeout: Seconds = 10.0
    """The longest that one send to a destination may take."""
    statement_timeout: SecondsOrZero = 3.0
    """The longest that one statement may run; 0: the relay asks for no limit (as behind PgBouncer). It gives up a
    connection that has not answered 2 s later (if it is 0, after 10 s)."""
    queue_lease: Seconds = 60.0
    """How long a claimed message may wait in the queue before it may be claimed again."""

    backoff_base: Seconds = 1.0
    """The wait after the first failed attempt."""
    backoff_cap: Seconds = 3600.0
    """The wait before attempt n + 1 is base · 2^(n-1), at most the cap, plus up to a quarter at random."""

    breaker_failures: Count = 5
    """How many sends in a row, in the cluster, of as many different messages, must find a destination out of reach
    before its circuit opens."""
    breaker_pause: Seconds = 5.0
    """How long the circuit is open at first; then up to three messages try, one by one. If all fail, the next pause is
    twice as long, up to twelve times this."""

    def singles_of(self, destination: str) -> int | Literal["all"]:
        """How many due messages of `destination` travel as Celery tasks of their own. With a `concurrency` none do:
        only the slots of drains are counted for the whole cluster, also while several claims run."""
        configured = self.destinations[destination]
        if configured.concurrency is not None:
            return 0
        return self.singles if configured.singles is None else configured.singles

    def send_timeout_of(self, destination: str) -> float:
        """The longest that one send to `destination` may take."""
        configured = self.destinations.get(destination)
        return (configured and configured.send_timeout) or self.send_timeout

    def sending_time_of(self, destination: str) -> float:
        """Seconds after which a batch begins no further send. One of `send_timeout` can still be settled in time."""
        return self.soft_time_limit - self.send_timeout_of(destination) - 2 * self.statement_timeout

    # What follows from the settings above. In this order, each is longer than the one before:
    # longest_send, soft_time_limit, hard_time_limit, send_lease.

    @property
    def longest_send(self) -> float:
        """Seconds that a send to the slowest destination may take, with the statements that begin and settle it."""
        slowest = max([self.send_timeout, *map(self.send_timeout_of, self.destinations)])
        return slowest + 2 * (self.statement_timeout or USUAL_STATEMENT_SECONDS)

    @property
    def send_lease(self) -> float:
        """The lease that a begun send has at least: 40 s (or two thirds of `queue_lease`, if that is shorter), and more
        if a send may take long."""
        return max(2.5 * self.longest_send, min(40.0, self.queue_lease * 2 / 3))

    @property
    def soft_time_limit(self) -> float:
        """Celery's soft limit for a publish task. A send that still runs is given up, and settled as a retry."""
        return 0.45 * self.send_lease

    @property
    def hard_time_limit(self) -> float:
        """Celery's hard limit: the worker process is killed, and the lease brings its messages back."""
        return 0.625 * self.send_lease

    @property
    def drain_lease(self) -> float:
        """For how long a drain has its slot, from when it was asked for, and again from its begin: until its last batch
        has been sent."""
        return DRAIN_SECONDS + self.hard_time_limit

    @property
    def unhurried(self) -> float:
        """Seconds for a statement that did not end in time before: most of what a send may take."""
        return self.soft_time_limit * 2 / 3

    @property
    def native_retry_max(self) -> float:
        """Waits up to this, and the random quarter beyond, are Celery's own retry; longer ones go back to the table."""
        return min(60.0, self.queue_lease)

    @property
    def least_visibility_timeout(self) -> float:
        """Twice as long as a retry may wait without being acknowledged."""
        return 2 * (self.native_retry_max * 1.25 + self.queue_lease)

    @property
    def visibility_timeout(self) -> float:
        """Seconds after which workers of the relay on Redis take an unacknowledged task for lost."""
        return max(3600.0, self.least_visibility_timeout)

    @property
    def breaker_pause_max(self) -> float:
        """The longest that a circuit is open between two tries."""
        return 12 * self.breaker_pause
