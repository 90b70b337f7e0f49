"""A worker and its broker after trouble: what is counted, remembered and begun anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state

from outbox_tasks.broker import broker as broker_module
from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.names import CLAIM_TASK, WAIT
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.settings import Settings
from outbox_tasks.worker import liveness
from outbox_tasks.worker.liveness import Liveness
from outbox_tasks.worker.message_checks import checked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1000.0)
    for module in (broker_module, liveness):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def wait_of(**headers: Any) -> float | None:
    """The seconds until the time of a claim that arrives with these headers."""
    taken: list[Any] = []
    consumer = SimpleNamespace(app=SimpleNamespace(tasks={}), connection_errors=(OSError,))
    all_headers = {"task": CLAIM_TASK, "id": "1", "retries": 0, **headers}
    checked(consumer, taken.append)(
        SimpleNamespace(headers=all_headers, content_type="application/json", payload=[[], {}, {}])
    )
    assert taken[0].headers["expires"] is None
    eta = taken[0].headers.get("eta")
    return None if eta is None else (datetime.fromisoformat(eta) - datetime.now(UTC)).total_seconds()


def test_a_wait_counts_from_the_arrival_by_the_clock_of_the_worker() -> None:
    """The clock of the sender is an hour ahead, or behind."""
    for hours in (-1, 1):
        theirs = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
        assert 28 < (wait_of(eta=theirs, expires=theirs, **{WAIT: 30}) or 0) <= 30
    assert wait_of(expires=datetime.now(UTC).isoformat()) is None


class TestLiveness:
    def test_a_loop_that_stands_still_is_told_and_one_that_turns_again_is_not(self, clock: SimpleNamespace) -> None:
        alive = Liveness()
        alive.start(solo=False)
        clock.now += 30
        assert alive.trouble() is None
        clock.now += 0.1
        assert alive.trouble() == "its loop has not turned for 30 s"
        alive.tick()
        assert alive.trouble() is None
        alive.stop()
        clock.now += 31
        assert alive.trouble() == "it has been without its broker for 31 s"
        alive.start(solo=False)
        assert alive.trouble() is None

    def test_a_task_may_hold_up_the_loop_of_a_solo_pool_for_its_time_limit(
        self, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = SimpleNamespace(time_limit=100)
        monkeypatch.setattr(state, "active_requests", [SimpleNamespace(task=task)])
        for solo, seconds, fine in ((True, 99, True), (True, 101, False), (False, 99, False)):
            alive = Liveness()
            alive.start(solo=solo)
            clock.now += seconds
            assert (alive.trouble() is None) is fine
            alive.stop()
            assert alive.trouble() == f"it has been without its broker for {seconds} s"


class Producers:
    """A pool of one producer, which fails as it is told."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock, self.collected, self.asked = clock, 0, 0
        self.fails_after: float | None = None
        self.producer = SimpleNamespace(connection=SimpleNamespace(collect=self.collect))

    def collect(self, **_: Any) -> None:
        self.collected += 1

    @contextmanager
    def acquire(self, **_: Any) -> Iterator[Any]:
        self.asked += 1
        yield self.producer

    def use(self, broker: Broker, seconds: float | None) -> None:
        """One call, which fails after so many seconds."""
        with broker.producer():
            if seconds is not None:
                self.clock.now += seconds
                raise OSError("no answer.")


@pytest.fixture
def broker(clock: SimpleNamespace) -> tuple[Broker, Producers]:
    app = Celery(broker="redis://:secret@here/0", set_as_current=False)
    made, producers = Broker(app, Settings()), Producers(clock)
    vars(made)["_producers"] = producers
    return made, producers


class TestTroubleWithTheBroker:
    def test_two_slow_failures_in_a_row_spare_the_next_calls(
        self, broker: tuple[Broker, Producers], clock: SimpleNamespace
    ) -> None:
        made, producers = broker
        for _ in range(2):  # the second outage as the first one
            for seconds in (3, 0.5, 3, 9):
                with pytest.raises(BrokerUnreachable, match="no answer") as raised:
                    producers.use(made, seconds)
                assert "secret" not in str(raised.value)
            asked = producers.asked
            with pytest.raises(BrokerUnreachable, match="a moment ago"):
                producers.use(made, None)
            assert producers.asked == asked
            clock.now += 3
            producers.use(made, None)
        assert producers.collected == 8  # its other sockets may be dead, too

    @pytest.mark.parametrize("between", [None, 0.5])
    def test_failures_with_another_end_between_are_not_in_a_row(
        self, broker: tuple[Broker, Producers], between: float | None
    ) -> None:
        made, producers = broker
        for seconds in (3, between, 3, between):
            with suppress(BrokerUnreachable):
                producers.use(made, seconds)
        assert producers.asked == 4
        with pytest.raises(KeyError), made.producer():
            raise KeyError("what others raise inside is theirs")
