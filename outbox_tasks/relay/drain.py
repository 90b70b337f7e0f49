"""The whole relay in one process, without Celery: for cron, or a function that runs on a schedule.

It takes the same leases as the workers, so any number of drains and workers may run at the same time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.model import Bundle, Outcome, Step, Ticket, Verdict
from outbox_tasks.relay import claim
from outbox_tasks.relay.bridge import LONGEST, bridge_all
from outbox_tasks.relay.deliver import Listener, deliver, halved
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import SLOW

log = logging.getLogger(__name__)

ENOUGH = 1 << 62
"""More than any queue holds: with it the claim stops."""

PATIENCE = 20
"""How often in a row a drain may claim messages and find no free slot for them. Then it leaves them to others."""


@dataclass(slots=True)
class Drained:
    """What one drain did."""

    steps: Counter[Step] = field(default_factory=Counter)
    buried: int = 0
    """Messages that the claim made dead: no attempts left, too old or too large, or no known destination."""
    ended: bool = True
    """Whether nothing was due any more. False: it was told to stop before."""

    @property
    def sent(self) -> int:
        return self.steps[Step.SENT] + self.steps[Step.HANDED]

    @property
    def dead(self) -> int:
        return self.steps[Step.DEAD] + self.buried

    @property
    def later(self) -> int:
        """Messages that failed and are due again after a wait."""
        return self.steps[Step.RELEASE] + self.steps[Step.OUTAGE]


def drain(
    store: Store,
    publishers: Publishers,
    *,
    stop: Callable[[], bool] = lambda: False,
    settled: Callable[[Bundle, Sequence[Verdict], float], None] = lambda bundle, verdicts, seconds: None,
) -> Drained:
    """Copy what the feeds have; then claim, send and settle until nothing is due, or until `stop()` is true. It is
    asked before each bundle.

    `settled` gets each bundle, its verdicts, and the seconds from begin to settle. A message that fails is due again
    after its backoff, and the drain does not wait for it. Raises `DatabaseUnavailable`. Then the claimed messages are
    claimed again when their leases have run out.
    """
    drained, tries, given_back = Drained(), 0, False
    fed = _copy_feeds(store, stop)
    while not stop():
        found = _Round(store, publishers, stop, settled, drained)
        tally = claim.claim(store, found.send, lambda: ENOUGH if stop() else 0)
        drained.buried += tally.dead
        before, given_back = given_back, tally.claimed > found.begun
        tries = 0 if found.begun or tally.dead else tries + 1
        nothing_due = tries and not (before or given_back)
        if nothing_due or tries > PATIENCE:
            if not fed:
                return drained
            fed, tries = _copy_feeds(store, stop), 0
        if given_back:
            time.sleep(1.2 * SLOW)  # these messages are due again after SLOW
    drained.ended = False
    return drained


def _copy_feeds(store: Store, stop: Callable[[], bool]) -> bool:
    """Copy what the feeds have, for some seconds each: what was copied is sent before the rest. Returns whether there
    is more."""
    return any(bridged.more for bridged in bridge_all(store, stop, longest=LONGEST).values())


class _Round(Listener):
    """Delivers the bundles of one claim: it stands in for a queue and its workers."""

    retries_by_celery = False

    def __init__(
        self,
        store: Store,
        publishers: Publishers,
        stop: Callable[[], bool],
        settled: Callable[[Bundle, Sequence[Verdict], float], None],
        drained: Drained,
    ) -> None:
        self._store, self._publishers, self._stop = store, publishers, stop
        self._tell_settled, self._drained = settled, drained
        self._unbegun: Bundle | None = None
        self.begun = 0

    def send(self, bundles: Sequence[Bundle]) -> None:
        """Deliver each bundle. When it is time to stop, release the rest."""
        for n, bundle in enumerate(bundles):
            if self._stop():
                for left in bundles[n:]:
                    self._store.release(left.lease, left.tickets)
                return
            self._deliver(bundle)

    def _deliver(self, bundle: Bundle, *, unhurried: bool = False) -> None:
        """If the database takes too long to begin it, begin half of it; and if it is one message, with more time."""
        try:
            deliver(self._store, self._publishers, bundle, self, unhurried=unhurried)
        except DatabaseTooSlow:
            if unhurried or self._unbegun is not bundle:
                raise
            smaller = halved(self._store, bundle)
            self._deliver(smaller or bundle, unhurried=smaller is None)

    def not_begun(self, bundle: Bundle, error: DatabaseUnavailable) -> None:
        self._unbegun = bundle

    def sent(self, bundle: Bundle, outcomes: Sequence[tuple[Ticket, Outcome]]) -> None:
        self.begun += len(outcomes)

    def dead(self, bundle: Bundle, verdict: Verdict) -> None:
        # Without the error's text: it may quote the message. See `logs`.
        log.warning("message %s is dead: %s", verdict.ticket.id, verdict.code)

    def settled(self, bundle: Bundle, verdicts: Sequence[Verdict], seconds: float) -> None:
        self._tell_settled(bundle, verdicts, seconds)
        self._drained.steps.update(verdict.step for verdict in verdicts)
