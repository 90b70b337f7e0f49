"""`outbox-tasks drain`: send without workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from outbox_tasks.cli.shared.acts import stoppable
from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import open_store, relay_settings
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import overview
from outbox_tasks.relay.drain import Drained
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.send_all import send_all
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.text import many, one_line

log = logging.getLogger(__name__)


@click.command()
@click.option("--for", "seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after this many seconds.")
@json_option
def drain(seconds: float | None) -> None:
    """Send due messages from this process, without workers, then end.

    For cron, or a function that runs on a schedule. It takes leases as workers do, so several drains and workers can
    run at once. A message that fails is due again later. Ctrl-C and SIGTERM end it after the current batch. Exit
    code 1 if a message is dead, or if due messages could not be sent: it says which destination has them, and why.
    What waits behind something else is no failure.
    """
    raise SystemExit(_run(seconds))


class _Counting(Listener):
    """Logs what is dead, and counts what is settled."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def dead(self, verdict: Verdict) -> None:
        # The error's text may quote the message, so the log gets only the code.
        log.warning("message %s is dead: %s", verdict.message.id, verdict.code)

    def done(self, destination: str, lease: str, verdicts: Sequence[Verdict], seconds: float) -> None:
        self._counters.count(destination, (verdict.step for verdict in verdicts))


def _run(seconds: float | None) -> int:
    """Drain, and say what it did. Returns the exit code."""
    settings = relay_settings()
    settings.check_destinations()
    with open_store(settings=settings.with_singles(0)) as store, stoppable() as stopped:
        publishers, counters = Publishers(settings), Counters(lambda: store)
        deadline = float("inf") if seconds is None else time.monotonic() + seconds

        def stop() -> bool:
            return stopped.is_set() or time.monotonic() > deadline

        try:
            drained = send_all(store, publishers, _Counting(counters), stop=stop)
            counters.ran("claim", claimed=_sent(drained))
            if _sent(drained):
                counters.ran("publish")
        finally:
            counters.close()
            publishers.close()
        not_sent = [] if drained.more else list(_unsent(store))
    _report(drained, not_sent)
    in_trouble = any(rest["state"] != "behind" for rest in not_sent)
    failed = drained.steps[Step.DEAD] or drained.steps[Step.OUTAGE] or in_trouble
    return int(bool(failed))


def _sent(drained: Drained) -> int:
    return drained.steps[Step.SENT] + drained.steps[Step.HANDED]


def _unsent(store: Store) -> Iterator[dict[str, Any]]:
    """The destinations whose due messages were not sent, although there was time for all, and why. `state`: `trouble`,
    `paused` or `limited`; or `behind`: something else comes first, which is no failure.

    While a destination is in trouble, its failed messages count, whether or not their next try is due at this moment:
    so each drain says the same. A message that an outage put off has spent no attempt, and counts as scheduled."""
    for name, status in overview.destinations(store, estimate=False).items():
        row, waiting = status.breaker, status.due
        if row["state"] == "paused":
            state, why = "paused", ": ".join(filter(None, (f"it is paused by {row['paused_by']}", row["paused_why"])))
        elif row["failures"]:
            state, why = "trouble", f"its last sends failed ({row['error_code']}: {row['error']})"
            waiting = status.waiting + status.states["scheduled"]
        elif status.configured and store.limits.of(name).is_limited:
            state, why = "limited", "its rate_limit or concurrency is used up for now"
        else:
            state = "behind"
            why = (
                "something else comes first, another drain is at work, or they were written just now "
                "(see outbox-tasks list --by key, and doctor)"
            )
        if waiting and status.configured:
            yield {"destination": name, "waiting": waiting, "state": state, "why": why}


def _report(drained: Drained, not_sent: Sequence[dict[str, Any]]) -> None:
    sent, outages, dead = _sent(drained), drained.steps[Step.OUTAGE], drained.steps[Step.DEAD]
    later = drained.steps[Step.LATER] + outages
    text = f"Sent {sent:,}"
    if later:
        text += f", {later:,} failed and will be tried again"
    if dead:
        text += f", {dead:,} {'is' if dead == 1 else 'are'} dead (see outbox-tasks list --by error)"
    if not not_sent:
        text += ". Stopped before the end" if drained.more else ". Nothing more is due"
    lines = [f"{text}."]
    for rest in not_sent:
        at_least = f"{rest['waiting']:,} or more" if rest["waiting"] >= overview.COUNTED_EXACTLY else None
        waiting = many(rest["waiting"], "message", at_least)
        lines.append(one_line(f"{rest['destination']} still has {waiting}, because {rest['why']}."))
    counts = {"sent": sent, "later": later, "dead": dead, "ended": not drained.more, "outages": outages}
    answer({**counts, "left": not_sent}, "\n".join(lines))
