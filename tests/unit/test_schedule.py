"""What Celery's own scheduler makes of the relay's schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery.beat import Scheduler

from outbox_tasks.celery import make_app
from outbox_tasks.settings import Settings
from outbox_tasks.worker.schedule import CLAIM_TASK, MAINTAIN_TASK


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    app = make_app(Settings(broker_url="memory://"))
    yield Scheduler(app)
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
