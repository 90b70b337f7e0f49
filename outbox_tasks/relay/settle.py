"""Settle, the last hop: record what became of the messages of a lease, and tell whoever runs the pipe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.store import Store

log = logging.getLogger(__name__)

R = TypeVar("R")

PAUSES_SECONDS = (0.05, 0.2, 0.5)
"""Between tries while the database is away; the last pause repeats. The messages are sent already, so it is worth
waiting to record that."""


class Listener:
    """What happens on the pipe, told to whoever runs it: a worker, a command, or a test. Does nothing by itself."""

    def sent(self, destination: str, verdicts: Sequence[Verdict]) -> None:
        """The messages of a lease were sent, or judged. The database does not know it yet."""

    def circuit_opened(self, destination: str, code: str | None, error: str | None) -> None:
        """The circuit of a destination is open now, because of this error."""

    def dead(self, verdict: Verdict) -> None:
        """A message is a dead letter now."""

    def done(self, destination: str, lease: str, verdicts: Sequence[Verdict], seconds: float) -> None:
        """The messages of a lease are settled; `seconds` is the time since their send began."""


class Settled(NamedTuple):
    """How the settle of a lease ended."""

    verdicts: list[Verdict]
    """In the order of the messages. STALE: the lease was lost before. A task that was handed over stays HANDED: a quick
    worker may have begun it already."""
    more: bool
    """More messages of their keys are due now."""

    @property
    def verdict(self) -> Verdict:
        """The only one, if the lease was that of a single."""
        return self.verdicts[0]


def settle(
    store: Store,
    token: str,
    destination: str,
    verdicts: list[Verdict],
    listener: Listener,
    began: float,
) -> Settled:
    """Record the verdicts on all messages of a lease. `began`: when their send began, by `time.monotonic`.

    Raises `DatabaseUnavailable` if the database stays away. Then the lease runs out, and each message is sent again,
    with the cause on it.
    """
    listener.sent(destination, verdicts)
    settled = _Settle(store, token, destination, verdicts, listener).record()
    for verdict in settled.verdicts:
        if verdict.step is Step.DEAD:
            listener.dead(verdict)
    listener.done(destination, token, settled.verdicts, time.monotonic() - began)
    return settled


class _Settle:
    """The settle of one lease. While the database is away, each statement is tried again, until the deadline."""

    def __init__(self, store: Store, token: str, destination: str, verdicts: list[Verdict], listener: Listener) -> None:
        self._store, self._token, self._destination, self._verdicts = store, token, destination, verdicts
        self._listener = listener
        # What Celery's time limit leaves after the slowest send.
        left = store.settings.sending_time_of(destination) + store.settings.statement_timeout
        self._deadline = time.monotonic() + left

    def record(self) -> Settled:
        """There are three cases. 1. The lease was still ours: all is recorded. 2. It was lost before the messages were
        sent, or no message was sent: somebody else sends them. 3. It was lost after they were sent: then they arrive
        twice, and get a note that says why."""
        self._tell_the_breaker()
        leases, verdicts = self._store.leases, self._verdicts
        settle = partial(leases.settle, self._token, self._destination, verdicts)
        (ours, more), failures = self._until_answered(settle, partial(settle, unhurried=True))
        if len(ours) == len(verdicts):
            return Settled(verdicts, more)
        lost = [v for v in verdicts if v.message.seq not in ours and v.step is not Step.HANDED]
        if in_vain := [verdict.message for verdict in lost if verdict.sent]:
            # An earlier try, whose answer did not arrive, may have settled them.
            self._until_answered(partial(leases.sent_in_vain, in_vain, tried_before=failures > 0))
        stale = {verdict.message.seq for verdict in lost}
        return Settled([replace(v, step=Step.STALE) if v.message.seq in stale else v for v in verdicts], more)

    def _tell_the_breaker(self) -> None:
        """Tell the breaker of a lease of which no message arrived. It counts as one send. There are three cases.

        1. Nothing was sent: nothing is known. 2. The destination was out of reach: the circuit may open. 3. The
        destination answered, if only to refuse: the circuit closes. Where a message arrived, the settle itself closes
        the circuit.
        """
        sent = [verdict for verdict in self._verdicts if verdict.sent]
        if not sent or any(verdict.step in (Step.SENT, Step.HANDED, Step.DISCARDED) for verdict in sent):
            return
        destination, traffic = self._destination, self._store.traffic
        outage = next((verdict for verdict in sent if verdict.step is Step.OUTAGE), None)
        if outage is None:
            self._until_answered(partial(traffic.recovered, destination))
            return
        if self._until_answered(partial(traffic.tripped, destination, self._token, outage.code, outage.error))[0]:
            facts = {"destination": destination, "code": outage.code, "lease": self._token}
            log.warning("the circuit of %s is open for a while: %s", destination, outage.code, extra=facts)
            self._listener.circuit_opened(destination, outage.code, outage.error)

    def _until_answered(self, ask: Callable[[], R], unhurried: Callable[[], R] | None = None) -> tuple[R, int]:
        """Call `ask` until the database answers. After it was too slow, call `unhurried` instead: the same with more
        time. Returns the answer, and how many calls failed before."""
        for failures, pause in enumerate(chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1]))):
            try:
                return ask(), failures
            except DatabaseUnavailable as error:
                # Try at least once more: the process may have been paused, and the database may be back.
                if failures and time.monotonic() + pause > self._deadline:
                    raise
                if unhurried and isinstance(error, DatabaseTooSlow):
                    ask = unhurried
                facts = {"destination": self._destination, "count": len(self._verdicts)}
                text = "could not settle %d messages to %s, trying again: %s"
                log.warning(text, facts["count"], self._destination, error, extra=facts)
                time.sleep(pause)
        raise AssertionError  # the pauses have no end
