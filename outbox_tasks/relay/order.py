"""The order of a key inside a batch: in this place for all publishers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from outbox_tasks.destinations import Publisher
from outbox_tasks.errors import OutboxError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.relay.publishers import send
from outbox_tasks.settings import Settings


def send_in_order(
    settings: Settings, publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]
) -> list[Outcome]:
    """One outcome per message. Messages go in waves: first the first one of every key, then the second ones. So each
    message is sent after the one before it with the same key has arrived, and not at all behind one that has not. A
    task that was handed over holds up its key too, until it has run.

    No wave begins after the deadline. What is not sent is behind. A publisher that keeps the order itself gets all
    messages at once.
    """
    try:
        publisher = publishers.get(destination)
    except OutboxError as error:  # such as a library that is not installed here: the others are sent all the same
        return [Outcome.outage("unusable", str(error))] * len(messages)
    if getattr(publisher, "keeps_order", False) or len(waves := _waves(messages)) == 1:
        return send(publishers, destination, messages)
    passing = {Result.SENT, Result.DISCARDED, *(() if settings.dead_blocks(destination) else (Result.DEAD,))}
    deadline = time.monotonic() + settings.sending_time_of(destination)
    outcomes: dict[int, Outcome] = {}
    stopped: set[str | None] = set()
    for wave in waves:
        if outcomes and time.monotonic() > deadline:
            break
        free = [message for message in wave if message.key not in stopped]
        for message, outcome in zip(free, send(publishers, destination, free) if free else (), strict=True):
            outcomes[message.seq] = outcome
            if message.key is not None and outcome.result not in passing:
                stopped.add(message.key)
    return [outcomes.get(message.seq) or Outcome.behind() for message in messages]


def _waves(messages: Sequence[LeasedMessage]) -> list[list[LeasedMessage]]:
    """The n-th message of each key is in the n-th wave; those without a key are in the first one."""
    waves: list[list[LeasedMessage]] = [[]]
    count: Counter[str] = Counter()
    for message in messages:
        place = 0 if message.key is None else count[message.key]
        if place == len(waves):
            waves.append([])
        waves[place].append(message)
        if message.key is not None:
            count[message.key] += 1
    return waves
