"""Sends messages whose send has begun, in the order of each key, and judges what becomes of each. No transaction is
open meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from outbox_tasks.destinations import Publisher, outcomes_of
from outbox_tasks.errors import OutboxError
from outbox_tasks.model import LeasedMessage, Outcome, Result, Step, Verdict
from outbox_tasks.relay.retry import judge, unsendable
from outbox_tasks.settings import Settings
from outbox_tasks.wire import tracing


def send(
    settings: Settings,
    publishers: Mapping[str, Publisher],
    destination: str,
    messages: Sequence[LeasedMessage],
    *,
    by_celery: bool = False,
) -> list[Verdict]:
    """A verdict for each message of a destination, in their order. `by_celery`: Celery may try it again soon."""
    verdicts = _judged_unsent(settings, destination, messages)
    sendable = [message for message in messages if message.seq not in verdicts]
    if sendable:
        with tracing.sending(destination, settings.destinations[destination].scheme, sendable) as sends:
            sends.outcomes = send_in_order(settings, publishers, destination, sends.messages)
        for message, outcome in zip(sendable, sends.outcomes, strict=True):
            verdicts[message.seq] = judge(settings, message, outcome, by_celery=by_celery)
    return [verdicts[message.seq] for message in messages]


def _judged_unsent(settings: Settings, destination: str, messages: Sequence[LeasedMessage]) -> dict[int, Verdict]:
    """The verdicts on messages that must not be sent, and on those that stand behind one of them, by their numbers."""
    newest = {message.key: message.seq for message in messages if message.latest}
    blocks = settings.dead_blocks(destination)
    verdicts: dict[int, Verdict] = {}
    blocked_keys: set[str | None] = set()
    for message in messages:
        newer = message.newer or (message.attempts > 1 and message.seq < newest.get(message.key, 0))
        verdict = unsendable(settings, message, newer=newer)
        if verdict is None and message.key in blocked_keys:
            verdict = Verdict(message, Step.BEHIND, sent=False)
        if verdict is None:
            continue
        verdicts[message.seq] = verdict
        if verdict.step is Step.DEAD and blocks and message.key is not None:
            blocked_keys.add(message.key)
    return verdicts


def send_in_order(
    settings: Settings, publishers: Mapping[str, Publisher], destination: str, messages: Sequence[LeasedMessage]
) -> list[Outcome]:
    """One outcome per message. This is the one place that keeps the order of a key inside a batch, for all publishers.

    Messages go in waves: first the first one of every key, then the second ones. So each message is sent after the one
    before it with the same key has arrived, and not at all behind one that has not. A task that was handed over holds
    up its key too, until it has run. No wave begins after the deadline; what is not sent is behind. A publisher that
    keeps the order itself gets all messages at once.
    """
    try:
        publisher = publishers[destination]
    except OutboxError as error:  # such as a library that is not installed here: the others are sent all the same
        return [Outcome.outage("unusable", str(error))] * len(messages)
    if getattr(publisher, "keeps_order", False):
        return outcomes_of(publisher.publish, destination, messages)
    passing = {Result.SENT, Result.DISCARDED, *(() if settings.dead_blocks(destination) else (Result.DEAD,))}
    deadline = time.monotonic() + settings.sending_time_of(destination)
    outcomes: dict[int, Outcome] = {}
    blocked_keys: set[str | None] = set()
    for wave in _waves(messages):
        if outcomes and time.monotonic() > deadline:
            break
        free = [message for message in wave if message.key not in blocked_keys]
        answers = outcomes_of(publisher.publish, destination, free) if free else []
        for message, outcome in zip(free, answers, strict=True):
            outcomes[message.seq] = outcome
            if outcome.result not in passing:
                blocked_keys.add(message.key)
    return [outcomes.get(message.seq) or Outcome.behind() for message in messages]


def _waves(messages: Sequence[LeasedMessage]) -> list[list[LeasedMessage]]:
    """The n-th message of each key is in the n-th wave; all messages without a key are in the first one."""
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
