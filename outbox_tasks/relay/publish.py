"""Publish, the hop of a single: begin, send, settle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import Step
from outbox_tasks.relay.send import send
from outbox_tasks.relay.settle import Listener, Settled, settle
from outbox_tasks.relay.store import Store


def publish(
    store: Store,
    publishers: Mapping[str, Publisher],
    destination: str,
    token: str,
    listener: Listener,
    *,
    by_celery: bool = False,
) -> Settled | None:
    """Send a single. None: the lease is not ours any more, or the destination gets nothing now. Then the lease is given
    back, which changes nothing if it is not ours.

    Raises `DatabaseUnavailable` if the send could not begin, or could not be settled.
    """
    began = time.monotonic()
    message = store.begin(token, destination)
    if message is None:
        store.give_back([token])
        return None
    verdicts = send(store.settings, publishers, destination, [message], by_celery=by_celery)
    if verdicts[0].step is Step.RETRY and store.limits.of(destination).is_limited:
        # Only the claim looks at the limits, so the message goes back to the table.
        verdicts = [replace(verdicts[0], step=Step.LATER)]
    return settle(store, token, destination, verdicts, listener, began)
