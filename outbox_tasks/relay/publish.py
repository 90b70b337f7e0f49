"""Publish, the hop of a single: begin, send, settle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.listener import Listener
from outbox_tasks.relay.send import send
from outbox_tasks.relay.settle import settle
from outbox_tasks.relay.store import Store


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a single."""

    verdict: Verdict
    more: bool
    """The next message of its key is due now."""


def publish(
    store: Store,
    publishers: Mapping[str, Publisher],
    destination: str,
    token: str,
    listener: Listener,
    *,
    by_celery: bool = False,
) -> Published | None:
    """Send a single. None: its lease is not ours any more, or its destination gets nothing now; then it is given back.

    Raises `DatabaseUnavailable` if the send could not begin, or could not be settled.
    """
    began = time.monotonic()
    message = store.begin(token, destination)
    if message is None:
        store.give_back([token])
        return None
    verdicts = send(store.settings, publishers, destination, [message], by_celery=by_celery)
    if verdicts[0].step is Step.RETRY and store.limits.of(destination).is_limited:
        verdicts = [replace(verdicts[0], step=Step.LATER)]
    listener.sent(destination, verdicts)
    settled = settle(store, token, destination, verdicts, listener.opened(destination))
    listener.settled(destination, token, settled.verdicts, time.monotonic() - began)
    return Published(settled.verdicts[0], settled.more)
