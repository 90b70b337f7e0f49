"""What beat makes of the relay's schedule."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kombu.utils.imports import symbol_by_name

from outbox_tasks.celery import make_app
from outbox_tasks.settings import Settings
from outbox_tasks.worker.schedule import CLAIM_TASK, MAINTAIN_TASK, Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    app = make_app(Settings(broker_url="memory://"))
    yield symbol_by_name(app.conf.beat_scheduler)(app)
    app.close()


def test_maintenance_is_due_as_beat_starts_and_then_every_hour(scheduler: Scheduler) -> None:
    entry = scheduler.schedule[MAINTAIN_TASK]
    assert entry.is_due().is_due
    due, seconds = next(entry).is_due()
    assert not due
    assert 3590 < seconds <= 3600


def test_claims_are_due_by_their_interval(scheduler: Scheduler) -> None:
    due, seconds = scheduler.schedule[CLAIM_TASK].is_due()
    assert not due
    assert 0 < seconds <= 1


def test_beat_sleeps_until_an_entry_is_due(scheduler: Scheduler) -> None:
    scheduler.app.conf.beat_schedule = {"often": {"task": "nothing", "schedule": 0.05}}
    scheduler.setup_schedule()
    ticks, until = 0, time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(max(0.0, scheduler.tick()))
        ticks += 1
    runs = scheduler.schedule["often"].total_run_count
    assert runs > 1
    assert ticks < 5 * runs
