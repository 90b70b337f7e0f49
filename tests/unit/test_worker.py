"""A worker and its broker after trouble: what is counted, remembered and begun anew."""

from __future__ import annotations

import logging
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
from outbox_tasks.broker.names import CLAIM_TASK, PUBLISH_TASK, WAIT
from outbox_tasks.errors import BrokerUnreachable, CrossedWires, DatabaseUnavailable
from outbox_tasks.settings import Settings
from outbox_tasks.worker import liveness
from outbox_tasks.worker.liveness import Liveness
from outbox_tasks.worker.message_checks import checked
from outbox_tasks.worker.start_checks import check_broker

GONE = BrokerUnreachable(url="redis://here", reason="gone")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1000.0)
    for module in (broker_module, liveness):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


class Taken:
    """What a consumer's handler has taken, and what it was given back."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        tasks = {CLAIM_TASK: None, PUBLISH_TASK: None}
        consumer = SimpleNamespace(app=SimpleNamespace(tasks=tasks), connection_errors=(OSError,))
        self.take = checked(consumer, self.messages.append)

    def wait_of(self, **headers: Any) -> float | None:
        """Take a claim with these headers. Returns the seconds until its time."""
        all_headers = {"task": CLAIM_TASK, "id": "1", "retries": 0, **headers}
        message = SimpleNamespace(
            headers=all_headers, content_type="application/json", payload=[[], {}, {}], delivery_info={},
            acknowledged=False, reject_log_error=lambda *_: pytest.fail("it was refused"),
        )  # fmt: skip
        self.take(message)
        assert self.messages.pop() is message
        assert message.headers["expires"] is None
        eta = message.headers.get("eta")
        return None if eta is None else (datetime.fromisoformat(eta) - datetime.now(UTC)).total_seconds()


def test_a_wait_counts_from_the_arrival_by_the_clock_of_the_worker() -> None:
    """The clock of the sender is an hour ahead, or behind."""
    for hours in (-1, 1):
        theirs = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
        assert 28 < (Taken().wait_of(eta=theirs, expires=theirs, **{WAIT: 30}) or 0) <= 30
    assert Taken().wait_of(expires=datetime.now(UTC).isoformat()) is None


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

    def test_what_others_raise_inside_is_theirs(self, broker: tuple[Broker, Producers]) -> None:
        made, producers = broker
        with pytest.raises(KeyError), made.producer():
            raise KeyError("a mistake of ours")
        assert producers.collected == 0


def test_the_table_says_that_wires_are_crossed_while_they_are() -> None:
    crossed = CrossedWires(broker="redis://here", owner="other", outbox="mine")
    answers: list[Any] = [False, crossed, crossed, False, False, crossed, True]
    asked: list[str] = []
    beat, stopped = "report/beat.sql", "report/stopped.sql"

    def ask(verb: str, **_: Any) -> None:
        asked.append(verb)
        if verb == beat:  # the broker's answer matters more
            raise DatabaseUnavailable(url="here", reason="away")

    def has_forgotten(_: str) -> bool:
        answer: Any = answers.pop(0)
        if answer is crossed:
            raise crossed
        return bool(answer)

    store: Any = SimpleNamespace(
        identity="mine", ask=ask, claims=SimpleNamespace(recall=lambda: asked.append("recall") or 0)
    )
    resources: Any = SimpleNamespace(crossed=True)
    broker: Any = SimpleNamespace(has_forgotten=has_forgotten)
    while answers:
        with suppress(CrossedWires):
            check_broker(resources, broker, store)
    assert asked == [stopped, beat, beat, stopped, beat, stopped, "recall"]


def test_the_log_says_what_was_refused_shortly(caplog: pytest.LogCaptureFixture) -> None:
    refused: list[Any] = []
    consumer = SimpleNamespace(app=SimpleNamespace(tasks={}), connection_errors=())
    take = checked(consumer, lambda message: pytest.fail("it was taken"))
    message = SimpleNamespace(
        headers={"task": CLAIM_TASK, "id": "x" * 1000, "retries": 0}, content_type="application/x-python-serialize",
        payload=None, delivery_info={}, acknowledged=False, reject_log_error=lambda *_: refused.append(1),
    )  # fmt: skip
    with caplog.at_level(logging.ERROR):
        for message.acknowledged in (False, True):  # whoever ran it has acknowledged it
            take(message)
    assert refused == [1]
    assert len(caplog.messages[0]) < 600
