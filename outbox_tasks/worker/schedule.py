"""What runs when: the one definition of beat's schedule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import Celery, beat, signals
from celery.schedules import schedule

from outbox_tasks.broker.internals import wrap_tick
from outbox_tasks.broker.names import BY_BEAT, CLAIM_TASK, FEED_TASK, MAINTAIN_TASK
from outbox_tasks.settings import CLAIM_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, Settings

log = logging.getLogger(__name__)

MAINTAIN_SECONDS = 3600.0
"""Between two runs of the maintenance. If a run is missed, the day goes on until the next one."""

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """The entries for Celery's `beat_schedule`. Two beats, no beat for a while, or late ones do no harm."""
    # Without arguments it sends a task for each feed that nobody copies just now.
    feeds = {"task": FEED_TASK, "schedule": settings.claim_interval, "options": _options(FEED_QUEUE)}
    return {
        **({FEED_TASK: feeds} if settings.feeds else {}),
        CLAIM_TASK: {
            "task": CLAIM_TASK,
            "schedule": settings.claim_interval,
            "options": _options(CLAIM_QUEUE),
        },
        MAINTAIN_TASK: {
            "task": MAINTAIN_TASK,
            "schedule": MAINTAIN_SECONDS,
            # Due as beat starts. Otherwise a beat that restarts more often than hourly would never send it.
            "last_run_at": LONG_AGO,
            "options": _options(MAINTAIN_QUEUE),
        },
    }


def _options(queue: str) -> dict[str, Any]:
    return {"queue": queue, "headers": {BY_BEAT: True}}


def keep_pace(app: Celery) -> None:
    """Let beat of this app go on if the clock of its host is set back. Celery compares times of day: it would wait
    until the clock shows again when an entry last ran."""

    def wrap(sender: Any = None, **_: Any) -> None:
        if sender.app is app:
            wrap_tick(sender.scheduler, partial(partial, _tick, sender.scheduler))

    signals.beat_init.connect(wrap, weak=False)


def _tick(scheduler: beat.Scheduler, tick: Callable[[], float]) -> float:
    ahead = [entry for entry in scheduler.schedule.values() if _ran_later(entry)]
    for entry in ahead:
        entry.last_run_at = entry.default_now()
    if ahead:
        log.warning("the clock was set back: beat goes on with %s", ", ".join(entry.name for entry in ahead))
        scheduler.populate_heap()  # it keeps them in order of their times of day
    return tick()


def _ran_later(entry: beat.ScheduleEntry) -> bool:
    """Whether an entry with an interval last ran in the future. An entry for times of day, such as a crontab, waits
    for these times."""
    plan = entry.schedule
    if not isinstance(plan, schedule):
        return False
    last, now = (plan.maybe_make_aware(moment).astimezone(UTC) for moment in (entry.last_run_at, entry.default_now()))
    return bool(last > now)
