"""When a failed message is tried again, and when it is given up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox_tasks.model import LeasedMessage, Outcome, Step, Verdict
from outbox_tasks.relay import retry as rules
from outbox_tasks.relay.retry import LONGEST_ASKED_SECONDS, unsendable
from outbox_tasks.settings import Settings

TEN_ATTEMPTS = Settings(destinations={"orders": {"url": "a://b", "max_attempts": 10}})
FAILED = Outcome.retry("busy", "try later")


def message(attempts: int = 1, **more: Any) -> LeasedMessage:
    fields = ("some-id", "order.created", "orders", None, b"{}", "", {}, None, None, datetime.now(UTC), attempts)
    return LeasedMessage(*fields, **more)


def judge(settings: Settings, attempts: int, outcome: Outcome, **more: Any) -> Verdict:
    return rules.judge(settings, message(attempts, **more), outcome, by_celery=True)


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "JITTER_SHARE", 0)


class TestJudge:
    @pytest.mark.usefixtures("no_jitter")
    @pytest.mark.parametrize(
        ("attempt", "asked", "step", "wait"),
        [
            (1, None, Step.RETRY, 1),
            (6, None, Step.RETRY, 32),
            (7, None, Step.LATER, 64),
            (9, None, Step.LATER, 256),
            (1, 60, Step.RETRY, 60),
            (1, 60.1, Step.LATER, 60.1),
            (7, 10, Step.LATER, 64),
        ],
    )
    def test_short_waits_are_a_retry_by_celery_and_long_ones_go_through_the_table(
        self, attempt: int, asked: float | None, step: Step, wait: float
    ) -> None:
        outcome = Outcome.retry("busy", "later", retry_after=asked)
        verdict = judge(TEN_ATTEMPTS, attempt, outcome)
        assert (verdict.step, verdict.wait) == (step, wait)

    @pytest.mark.usefixtures("no_jitter")
    @pytest.mark.parametrize(
        ("asked", "wait"),
        [(1e10, LONGEST_ASKED_SECONDS), (10**400, LONGEST_ASKED_SECONDS), (float("nan"), 1), (-5, 1)],
    )
    @pytest.mark.parametrize("make", [Outcome.retry, Outcome.outage])
    def test_a_destination_can_ask_only_for_a_limited_wait(self, make: Any, asked: Any, wait: float) -> None:
        assert judge(TEN_ATTEMPTS, 1, make("busy", "later", retry_after=asked)).wait == wait

    def test_a_wait_gets_longer_at_random_and_stays_a_retry(self) -> None:
        verdicts = [judge(TEN_ATTEMPTS, 1, Outcome.retry("busy", "later", retry_after=60)) for _ in range(50)]
        assert {verdict.step for verdict in verdicts} == {Step.RETRY}
        assert 60 <= min(verdict.wait for verdict in verdicts) < max(verdict.wait for verdict in verdicts) <= 75

    @pytest.mark.parametrize(
        ("attempts", "spared", "dead"), [(9, 0, False), (10, 0, True), (11, 0, True), (10, 1, False), (15, 5, True)]
    )
    def test_a_failure_at_the_last_attempt_that_counts_is_dead(self, attempts: int, spared: int, dead: bool) -> None:
        verdict = rules.judge(TEN_ATTEMPTS, message(attempts, spared=spared), FAILED, by_celery=False)
        assert verdict.step is (Step.DEAD if dead else Step.LATER)
        assert (verdict.code, verdict.error) == ("busy", "try later")

    @pytest.mark.usefixtures("no_jitter")
    def test_waits_grow_over_rounds_by_the_attempts_that_count_and_in_an_outage_by_all(self) -> None:
        """Eight attempts met an outage before: then the first failure of the message itself is its first one."""
        together, away = Outcome.unforeseen("odd", together=True), Outcome.outage("away", "gone")
        for outcome, step, last in (
            (FAILED, Step.RETRY, (Step.DEAD, 0)), (together, Step.LATER, (Step.LATER, 3600)),
        ):  # fmt: skip
            verdicts = [judge(TEN_ATTEMPTS, attempts, outcome, spared=8) for attempts in (9, 10, 11, 30_000)]
            assert [(v.step, v.wait) for v in verdicts] == [(step, 1), (step, 2), (step, 4), last]
        verdicts = [judge(TEN_ATTEMPTS, attempts, away) for attempts in (1, 2, 3, 11, 30_000)]
        assert [verdict.wait for verdict in verdicts] == [1, 2, 4, *[TEN_ATTEMPTS.breaker_pause_max] * 2]
        assert {verdict.step for verdict in verdicts} == {Step.OUTAGE}
        assert not judge(TEN_ATTEMPTS, 2, Outcome.behind()).sent  # so this attempt does not count
        assert judge(TEN_ATTEMPTS, 2, Outcome.retry("x" * 99, "odd")).code == "x" * 64


class TestUnsendable:
    """What is judged before a send."""

    LIMITS = Settings(destinations={"orders": {"url": "a://b", "max_age": 100, "max_bytes": 50, "max_attempts": 3}})

    @pytest.mark.parametrize(
        ("fields", "step", "code"),
        [
            ({"newer": True}, Step.DISCARDED, "superseded"),
            ({"age": 100.1}, Step.DEAD, "too_old"),
            ({"size": 51}, Step.DEAD, "too_large"),
            ({"attempts": 4}, Step.DEAD, None),  # its last error stays
            ({"unread": True}, Step.LATER, "too_large"),
            ({"unread": True, "attempts": 3}, Step.DEAD, "too_large"),
            ({"newer": True, "age": 1000}, Step.DISCARDED, "superseded"),
        ],
    )
    def test_a_message_that_must_not_be_sent(self, fields: dict[str, Any], step: Step, code: str | None) -> None:
        verdict = unsendable(self.LIMITS, message(**fields), newer="newer" in fields)
        assert verdict
        assert (verdict.step, verdict.code) == (step, code)

    @pytest.mark.parametrize("fields", [{}, {"age": 100}, {"size": 50}, {"attempts": 3}, {"attempts": 9, "spared": 6}])
    def test_a_message_within_its_limits_is_sent(self, fields: dict[str, Any]) -> None:
        assert unsendable(self.LIMITS, message(**fields), newer=False) is None
