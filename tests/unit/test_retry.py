"""When a failed message is tried again, and when it is given up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.model import LeasedMessage, Outcome, Step, Verdict
from outbox_tasks.relay import retry as rules
from outbox_tasks.relay.retry import LONGEST_ASKED_SECONDS, unsendable
from outbox_tasks.settings import Settings

TEN_ATTEMPTS = Settings(destinations={"orders": {"url": "a://b", "max_attempts": 10}})
FAILED = Outcome.retry("busy", "try later")


def message(attempts: int = 1, destination: str = "orders", **more: Any) -> LeasedMessage:
    fields = ("some-id", "order.created", destination, None, b"{}", "", {}, None, None, datetime.now(UTC), attempts)
    return LeasedMessage(*fields, **more)


def judge(settings: Settings, attempts: int, outcome: Outcome, destination: str = "orders") -> Verdict:
    return rules.judge(settings, message(attempts, destination), outcome, by_celery=True)


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "JITTER_SHARE", 0)


class TestJudge:
    @pytest.mark.parametrize(("attempt", "step"), [(1, Step.LATER), (19, Step.LATER), (20, Step.DEAD)])
    def test_an_unknown_destination_has_the_default_number_of_attempts(self, attempt: int, step: Step) -> None:
        assert judge(TEN_ATTEMPTS, attempt, FAILED, "gone").step is step

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
        [(1e10, LONGEST_ASKED_SECONDS), (float("inf"), LONGEST_ASKED_SECONDS), (10**400, 1), (float("nan"), 1),
         (float("-inf"), 1), (-5, 1), ("soon", 1), ("7", 7)],
    )  # fmt: skip
    @pytest.mark.parametrize("make", [Outcome.retry, Outcome.outage])
    def test_a_destination_can_ask_only_for_a_limited_wait(self, make: Any, asked: Any, wait: float) -> None:
        assert judge(TEN_ATTEMPTS, 1, make("busy", "later", retry_after=asked)).wait == wait

    @given(st.integers(1, 9), st.none() | st.floats(0, LONGEST_ASKED_SECONDS))
    def test_the_visibility_timeout_covers_every_retry_by_celery(self, attempt: int, asked: float | None) -> None:
        verdict = judge(TEN_ATTEMPTS, attempt, Outcome.retry("busy", "later", retry_after=asked))
        assert verdict.step in (Step.RETRY, Step.LATER)
        assert verdict.wait >= (asked or 0)
        if verdict.step is Step.RETRY:
            assert 2 * (verdict.wait + TEN_ATTEMPTS.queue_lease) <= TEN_ATTEMPTS.visibility_timeout

    @pytest.mark.parametrize(
        ("attempts", "spared", "dead"), [(9, 0, False), (10, 0, True), (11, 0, True), (10, 1, False), (15, 5, True)]
    )
    def test_a_failure_at_the_last_attempt_that_counts_is_dead(self, attempts: int, spared: int, dead: bool) -> None:
        verdict = rules.judge(TEN_ATTEMPTS, message(attempts, spared=spared), FAILED, by_celery=False)
        assert verdict.step is (Step.DEAD if dead else Step.LATER)
        assert (verdict.code, verdict.error) == ("busy", "try later")

    def test_the_row_gets_no_secret_of_the_url_and_no_more_of_a_code_than_fits(self) -> None:
        settings = Settings(destinations={"orders": {"url": "a://shop:hunter22@b"}})
        verdict = judge(settings, 1, Outcome.retry("x" * 99, "not hunter22"))
        assert (verdict.code, verdict.error) == ("x" * 64, "not ***")

    @pytest.mark.usefixtures("no_jitter")
    def test_waits_grow_over_rounds_by_the_attempts_that_count_and_in_an_outage_by_all(self) -> None:
        """Eight attempts met an outage before: then the first failure of the message itself is its first one."""
        spared = [message(attempts, spared=8) for attempts in (9, 10, 11)]
        together = Outcome.unforeseen("odd", together=True)
        for outcome in (FAILED, together):
            waits = [rules.judge(TEN_ATTEMPTS, each, outcome, by_celery=True).wait for each in spared]
            assert waits == [1, 2, 4]
        away = Outcome.outage("away", "gone")
        rounds = [message(attempts, spared=attempts - 1) for attempts in (1, 2, 3, 11, 30_000)]
        waits = [rules.judge(TEN_ATTEMPTS, each, away, by_celery=True).wait for each in rounds]
        assert waits == [1, 2, 4, *[TEN_ATTEMPTS.breaker_pause_max] * 2]

    @pytest.mark.parametrize("attempts", [1, 10, 99])
    def test_an_outage_and_what_failed_together_are_never_the_end(self, attempts: int) -> None:
        verdict = judge(TEN_ATTEMPTS, attempts, Outcome.outage("away", "gone"))
        assert verdict.step is Step.OUTAGE
        assert verdict.wait <= TEN_ATTEMPTS.breaker_pause_max
        together = judge(TEN_ATTEMPTS, attempts, Outcome.unforeseen("odd", together=True))
        assert (together.step, together.code) == (Step.LATER, "failed_together")


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

    def test_an_unknown_destination_has_no_limits(self) -> None:
        unknown = message(99, "gone", age=1e9, size=10**9)
        assert unsendable(self.LIMITS, unknown, newer=False) is None
