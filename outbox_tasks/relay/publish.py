"""Publish, the hop of a single: begin, send, settle."""

from __future__ import annotations

import time
from collections.abc import Mapping

from outbox_tasks.destinations import Publisher
from outbox_tasks.errors import DatabaseUnavailable, NotSettled
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
    back, which changes nothing if it is not ours. Also None: the destination is not configured here, because a relay
    with newer settings has claimed the message. Then the lease runs out, and a note on the message says so.

    Raises `DatabaseUnavailable` if the send could not begin, `NotSettled` if it could not be settled.
    """
    if destination not in store.settings.destinations:
        return None
    began = time.monotonic()
    message = store.leases.begin(token, destination)
    if message is None:
        store.leases.give_back([token])
        return None
    # Only the claim looks at the limits of a destination, so what fails there goes back to the table.
    by_celery = by_celery and not store.limits.of(destination).is_limited
    verdicts = send(store.settings, publishers, destination, [message], by_celery=by_celery)
    try:
        return settle(store, token, destination, verdicts, listener, began)
    except DatabaseUnavailable as error:
        raise NotSettled(id=message.id, reason=str(error)) from error
