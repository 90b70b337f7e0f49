"""Sends messages that are leased and whose send has begun, and judges what becomes of each. No transaction is open
meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outbox_tasks.destinations import Publisher
from outbox_tasks.model import LeasedMessage, Step, Verdict
from outbox_tasks.relay.order import send_in_order
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
    before = _judged_unsent(settings, destination, messages)
    free = [message for message in messages if message.seq not in before] if before else messages
    if not free:
        return [before[message.seq] for message in messages]
    configured = settings.destinations.get(destination)
    with tracing.sending(destination, configured.scheme if configured else "", free) as sends:
        sends.outcomes = send_in_order(settings, publishers, destination, sends.messages)
    after = [
        judge(settings, message, outcome, by_celery=by_celery)
        for message, outcome in zip(free, sends.outcomes, strict=True)
    ]
    if not before:
        return after
    verdicts = {**before, **{verdict.message.seq: verdict for verdict in after}}
    return [verdicts[message.seq] for message in messages]


def _judged_unsent(settings: Settings, destination: str, messages: Sequence[LeasedMessage]) -> dict[int, Verdict]:
    """The verdicts on messages that must not be sent, and on those that stand behind one of them, by their numbers."""
    last = {message.key: message.seq for message in messages if message.latest}
    blocks = settings.dead_blocks(destination)
    verdicts: dict[int, Verdict] = {}
    stopped: set[str | None] = set()
    for message in messages:
        if message.attempts > 1 and message.seq < last.get(message.key, 0):
            message.newer = True
        verdict = unsendable(settings, message)
        if verdict is None and message.key in stopped:
            verdict = Verdict(message, Step.BEHIND, sent=False)
        if verdict is None:
            continue
        verdicts[message.seq] = verdict
        if verdict.step is Step.DEAD and blocks and message.key is not None:
            stopped.add(message.key)
    return verdicts
