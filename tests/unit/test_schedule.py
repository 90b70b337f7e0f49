"""What beat makes of the relay's schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery, beat, signals
from celery.schedules import crontab

from outbox_tasks.settings import Settings
from outbox_tasks.worker.app import make_app
from outbox_tasks.worker.install import install
from outbox_tasks.worker.schedule import CLAIM_TASK, LONG_AGO, MAINTAIN_TASK


def test_maintenance_is_due_as_beat_starts_and_then_every_hour() -> None:
    with make_app(Settings(broker_url="memory://")) as app:
        entry = beat.Scheduler(app).schedule[MAINTAIN_TASK]
        assert entry.is_due().is_due
        due, seconds = next(entry).is_due()
        assert not due
        assert 3590 < seconds <= 3600


class TestAClockThatIsSetBack:
    """By an hour, while beat runs: what is due each second may not wait for that hour."""

    @pytest.fixture(params=["ours", "celery.beat:PersistentScheduler"])
    def service(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[beat.Service]:
        settings = Settings(broker_url="memory://", database_url="postgresql://localhost/none")
        if request.param == "ours":
            app = make_app(settings)
        else:
            app = Celery("shop", broker="memory://", set_as_current=False)
            install(app, settings)
        app.conf.timezone = "Europe/Berlin"
        app.conf.beat_schedule["at four"] = {"task": "nothing", "schedule": crontab(hour=4, minute=0, app=app)}
        kind = app.conf.beat_scheduler if request.param == "ours" else request.param
        made = beat.Service(app, scheduler_cls=kind, schedule_filename=str(tmp_path / "schedule"))
        signals.beat_init.send(sender=made)
        yield made
        made.scheduler.close()
        app.close()

    def test_changes_no_interval(self, service: beat.Service, monkeypatch: pytest.MonkeyPatch) -> None:
        scheduler, sent = service.scheduler, list[str]()
        monkeypatch.setattr(scheduler, "apply_entry", lambda entry, producer: sent.append(entry.name))
        clock = Clock(datetime(2027, 10, 31, 0, 59, tzinfo=UTC), scheduler)
        monkeypatch.setattr(Celery, "now", lambda _: clock())
        clock.go_on(30)
        before = sent.count(CLAIM_TASK)
        clock.moment -= timedelta(hours=1)
        clock.go_on(1)
        assert scheduler.schedule["at four"].last_run_at > scheduler.app.now()  # a time of day is not changed
        clock.go_on(89)  # over the end of summer time
        assert 28 <= before <= 31
        assert 87 <= sent.count(CLAIM_TASK) - before <= 91
        assert (sent.count(MAINTAIN_TASK), sent.count("at four")) == (1, 0)


class Clock:
    """The time of day, as Celery asks for it."""

    def __init__(self, moment: datetime, scheduler: beat.Scheduler) -> None:
        self.moment, self._scheduler = moment, scheduler
        for entry in scheduler.schedule.values():
            entry.last_run_at = moment if entry.name != MAINTAIN_TASK else LONG_AGO

    def __call__(self) -> datetime:
        return self.moment.astimezone(self._scheduler.app.timezone)

    def go_on(self, seconds: float) -> None:
        """Let beat tick, and sleep for as long as it says."""
        while seconds > 0:
            slept = min(max(self._scheduler.tick(), 0.001), seconds)
            self.moment += timedelta(seconds=slept)
            seconds -= slept
