"""The whole pipe in one process, without Celery: for cron, or a function that runs on a schedule.

Under the same leases as the workers', so that any number of them, and workers too, may run at the same time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outbox_tasks import census, claim, publish, settle
from outbox_tasks.model import Bundle, Step, Verdict
from outbox_tasks.publish import Publishers
from outbox_tasks.settings import SLOW, Settings
from outbox_tasks.store import Store

log = logging.getLogger(__name__)

ENOUGH = 1 << 62
"""More than any queue holds: the claim then asks for nothing more."""

COUNTED = 1000
"""Messages of a destination that are counted as left, at most."""

PATIENCE = 20
"""Times that what was claimed could not be begun, since others held all slots of its destination, before it is left to
them."""


@dataclass(slots=True)
class Drained:
    """What one drain did, by what became of the messages."""

    steps: Counter[Step] = field(default_factory=Counter)
    buried: int = 0
    """Dead letters that were found to have no attempts left, or to be too old, or for no known destination."""
    ended: bool = True
    """Nothing was due any more; false if it was told to stop before."""

    @property
    def sent(self) -> int:
        return self.steps[Step.SENT]

    @property
    def dead(self) -> int:
        return self.steps[Step.DEAD] + self.buried

    @property
    def later(self) -> int:
        """Failed, and due again after a wait."""
        return self.steps[Step.RELEASE] + self.steps[Step.OUTAGE]


@dataclass(frozen=True, slots=True)
class Left:
    """A destination whose messages could not be sent, although they are due."""

    destination: str
    waiting: int
    """How many, counted up to some hundred."""
    state: str
    """`trouble`, `paused` or `limited`."""
    why: str


def settings_for(settings: Settings) -> Settings:
    """Those of a process that will be gone: every retry goes through the table."""
    return settings.replace(native_retry_max=0)


def drain(
    store: Store,
    publishers: Publishers,
    *,
    stop: Callable[[], bool] = lambda: False,
    settled: Callable[[Bundle, Sequence[Verdict], float], None] = lambda bundle, verdicts, seconds: None,
) -> Drained:
    """Claim, publish and settle until nothing is due, or `stop()` is true: it is asked before each bundle.

    `store` is one of `settings_for`. `settled` is told of each bundle, and of the seconds from begin to settle. What
    fails is due again later, by its backoff, and is not waited for. Raises `DatabaseUnavailable`; what was claimed then
    is claimed again when its lease has run out.
    """
    drained, tries, given_back = Drained(), 0, False
    while not stop():
        found = _Round(store, publishers, stop, settled, drained)
        tally = claim.claim(store, found.send, lambda: ENOUGH if stop() else 0)
        drained.buried += tally.dead
        before, given_back = given_back, tally.claimed > found.begun
        tries = 0 if found.begun or tally.dead else tries + 1
        if tries > PATIENCE or (tries and not (before or given_back)):
            return drained
        if given_back:
            time.sleep(1.2 * SLOW)  # it is due again in SLOW
    drained.ended = False
    return drained


def left_alone(store: Store) -> list[Left]:
    """The destinations of which something due was not sent, after a drain that had time for all.

    It follows from what the tables say, so that one drain after the other says the same: while a destination is in
    trouble, what failed on its way there counts, whether or not its next try is due in this moment.
    """
    found = []
    trouble = {row.name: row for row in store.traffic.states()}
    for name, standing in census.standings(store, COUNTED, estimate=False).items():
        configured, row = store.settings.destinations.get(name), trouble.get(name)
        if configured is None:
            continue
        # What an outage has put off has spent no attempt, and so counts as scheduled.
        waiting = sum(standing.states[state] for state in ("pending", "retrying", "scheduled"))
        if row is not None and row.paused_at is not None:
            why = f"it is paused by {row.paused_by}{f': {row.paused_why}' if row.paused_why else ''}"
            found.append(Left(name, standing.due, "paused", why))
        elif row is not None and row.failures:
            why = f"its last sends failed ({row.error_code}: {row.error})"
            found.append(Left(name, waiting, "trouble", why))
        elif configured.rate_limit is not None or configured.concurrency is not None:
            found.append(Left(name, standing.due, "limited", "its rate_limit or concurrency is used up for now"))
    return [one for one in found if one.waiting]


class _Round:
    """What one claim found, published as it is handed on."""

    def __init__(
        self,
        store: Store,
        publishers: Publishers,
        stop: Callable[[], bool],
        settled: Callable[[Bundle, Sequence[Verdict], float], None],
        drained: Drained,
    ) -> None:
        self._store, self._publishers, self._stop, self._settled = store, publishers, stop, settled
        self._drained = drained
        self.begun = 0

    def send(self, bundles: Sequence[Bundle]) -> None:
        """In place of a queue."""
        for n, bundle in enumerate(bundles):
            if self._stop():
                for left in bundles[n:]:
                    self._store.release(left.lease, left.tickets)
                return
            self._deliver(bundle)

    def _deliver(self, bundle: Bundle) -> None:
        began = time.monotonic()
        outcomes = publish.publish(self._store, self._publishers, bundle)
        verdicts = settle.settle(self._store, bundle, outcomes)
        self._settled(bundle, verdicts, time.monotonic() - began)
        self.begun += len(outcomes)
        self._drained.steps.update(verdict.step for verdict in verdicts)
        for verdict in verdicts:
            if verdict.step is Step.DEAD:
                # Not its error's text, which may quote the message: see `logs`.
                log.warning("message %s is dead: %s", verdict.ticket.id, verdict.code)
