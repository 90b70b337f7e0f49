"""The whole relay in one process, without Celery: for cron, or a function that runs on a schedule.

It claims, publishes and drains as workers do, so any number of such processes and of workers may be at work at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import Single, Slot, Step
from outbox_tasks.relay.claim import Pace, claim
from outbox_tasks.relay.drain import Drained, drain_in_slot
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.satellites import satellites


def send_all(
    store: Store,
    publishers: Mapping[str, Publisher],
    listener: Listener,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Drained:
    """Copy what the feeds have. Then claim and send until nothing is due, or until `stop()`, asked after each batch, is
    true. A message that fails is due again after its backoff: this does not wait for it.

    Raises `DatabaseUnavailable`. Then the lease of the batch runs out.
    """
    drained = Drained()

    def work(singles: Sequence[Single], slots: Sequence[Slot]) -> None:
        for single in singles:
            if published := publish(store, publishers, single.destination, single.token, listener):
                drained.steps[published.verdict.step] += 1
        for slot in slots:
            if stop():  # so that workers may have the slot
                store.claims.end_drain(slot)
            elif begun := store.claims.begin_drain(slot):
                drained.steps += drain_in_slot(store, publishers, begun, listener, stop=stop).steps

    pace = Pace(store.settings.destinations)
    more_to_copy = _copy(store, stop)
    while not stop():
        before = drained.steps.total()
        tally = claim(store, work, lambda: 0, pace)
        drained.steps.update([Step.DEAD] * len(tally.buried))
        if drained.steps.total() == before:  # nothing is due, or others have it
            if not more_to_copy:
                return drained
            more_to_copy = _copy(store, stop)
    drained.more = True
    return drained


def _copy(store: Store, stop: Callable[[], bool]) -> bool:
    """Copy messages from elsewhere, such as feeds: what was copied is sent before more is copied. Returns whether there
    is more."""
    more = [each.copy(store, stop) for each in satellites().values()]
    return any(more)
