"""Drain, the hop of many messages: take a batch, send it, settle it, and so on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from outbox_tasks.destinations import Publisher
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import Slot, Step
from outbox_tasks.relay.send import send
from outbox_tasks.relay.settle import Listener, settle
from outbox_tasks.relay.store import Store
from outbox_tasks.settings.pipe import DRAIN_SECONDS


@dataclass(slots=True)
class Drained:
    """What one drain did."""

    steps: Counter[Step] = field(default_factory=Counter)
    more: bool = False
    """It was told to stop, or its time was over: more may be due."""

    def __str__(self) -> str:
        steps = ", ".join(f"{step} {count}" for step, count in sorted(self.steps.items()))
        return f"{steps or 'nothing was due'}{', and there may be more' if self.more else ''}"


def drain(
    store: Store,
    publishers: Mapping[str, Publisher],
    destination: str,
    listener: Listener,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Drained:
    """Take, send and settle what is due for a destination, until nothing is due, or the time is over, or `stop()` is
    true, which is asked after each batch. Failed messages go back to the table.

    Raises `DatabaseUnavailable`. Then the lease of the batch runs out.
    """
    drained, deadline = Drained(), time.monotonic() + DRAIN_SECONDS
    while batch := store.takes.take(destination):
        if batch.messages:
            began = time.monotonic()
            verdicts = send(store.settings, publishers, destination, batch.messages)
            settled = settle(store, batch.token, destination, verdicts, listener, began)
            drained.steps.update(verdict.step for verdict in settled.verdicts)
        if time.monotonic() > deadline or stop():
            drained.more = True
            break
    return drained


def drain_in_slot(
    store: Store,
    publishers: Mapping[str, Publisher],
    slot: Slot,
    listener: Listener,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Drained:
    """`drain` in a slot whose drain has begun, and free the slot. The drain ends after a batch if a person has lowered
    the concurrency below the number of its slot."""

    def too_many() -> bool:
        most = store.limits.of(slot.destination).concurrency
        return most is not None and slot.number > most

    try:
        return drain(store, publishers, slot.destination, listener, stop=lambda: stop() or too_many())
    finally:
        with suppress(DatabaseUnavailable):  # then the slot is free in a moment by itself
            store.claims.end_drain(slot)
