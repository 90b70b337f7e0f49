"""The order of a key inside a batch, and an outcome for each message, whatever the publisher answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from outbox_tasks.destinations import Publisher, outcomes_of
from outbox_tasks.errors import NotInstalled
from outbox_tasks.model import LeasedMessage, Outcome, Result, Step
from outbox_tasks.relay.send import send, send_in_order
from outbox_tasks.settings import Settings
from tests.contract.messages import message, results

RETRY, OUTAGE = Outcome.retry("busy", "later"), Outcome.outage("away", "gone")
DEAD, DISCARDED = Outcome.dead("no", "no"), Outcome.discarded("late", "too late")
HANDED = Outcome.handed(60)


class Answering:
    """Answers messages as it is told, by their numbers, and remembers the calls."""

    def __init__(self, answers: Mapping[int, Outcome] | None = None, seconds: float = 0.0) -> None:
        self.answers, self.seconds = answers or {}, seconds
        self.calls: list[list[int]] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        numbers = [int(message.id[-12:]) for message in messages]
        self.calls.append(numbers)
        time.sleep(self.seconds)
        return [self.answers.get(number, Outcome.sent()) for number in numbers]

    def close(self) -> None:
        """Nothing is open."""


def settings(**values: Any) -> Settings:
    return Settings(destinations={"orders": {"url": "a://b", **values.pop("destination", {})}}, **values)


def sent(publisher: Answering, keys: Sequence[str | None], **values: Any) -> list[Result]:
    """What becomes of a batch of messages with these keys."""
    messages = [message(number, key=key) for number, key in enumerate(keys)]
    return results(send_in_order(settings(**values), {"orders": publisher}, "orders", messages))


def test_messages_of_a_key_go_one_after_the_other_in_waves_with_others() -> None:
    publisher = Answering()
    assert sent(publisher, ["a", "a", "b", None, "a", "b", None]) == [Result.SENT] * 7
    assert publisher.calls == [[0, 2, 3, 6], [1, 5], [4]]


@pytest.mark.parametrize("answer", [RETRY, OUTAGE, DEAD, HANDED], ids=lambda outcome: outcome.result)
def test_what_has_not_arrived_stops_its_key_alone(answer: Outcome) -> None:
    publisher = Answering({1: answer})
    expected = [Result.SENT, answer.result, Result.SENT, Result.SENT, Result.BEHIND, Result.SENT, Result.BEHIND]
    assert sent(publisher, ["a", "a", "b", "b", "a", "b", "a"]) == expected
    assert publisher.calls == [[0, 2], [1, 3], [5]]


@pytest.mark.parametrize(("answer", "on_dead"), [(DEAD, "skip"), (DISCARDED, "skip"), (DISCARDED, "block")])
def test_what_never_arrives_is_passed(answer: Outcome, on_dead: str) -> None:
    publisher = Answering({0: answer})
    assert sent(publisher, ["a", "a"], destination={"on_dead": on_dead}) == [answer.result, Result.SENT]


def test_no_wave_begins_after_the_deadline() -> None:
    short = {"send_timeout": 0.1, "statement_timeout": 0.01, "queue_lease": 0.1}
    publisher = Answering(seconds=1.5 * settings(**short).sending_time_of("orders"))
    assert sent(publisher, ["a", "a", "b"], **short) == [Result.SENT, Result.BEHIND, Result.SENT]
    assert publisher.calls == [[0, 2]]


def test_a_publisher_that_keeps_the_order_gets_all_at_once() -> None:
    class Keeping(Answering):
        keeps_order = True

    publisher = Keeping()
    assert sent(publisher, ["a", "b", "a"]) == [Result.SENT] * 3
    assert publisher.calls == [[0, 1, 2]]


def test_a_publisher_that_can_not_be_made_is_an_outage_for_all() -> None:
    class Missing(dict[str, Publisher]):
        def __getitem__(self, name: str) -> Any:
            raise NotInstalled(what=name, missing="pigeon", packages="pigeon")

    messages = [message(number, key="a") for number in range(2)]
    outcomes = send_in_order(settings(), Missing(), "orders", messages)
    assert [(outcome.result, outcome.code) for outcome in outcomes] == [(Result.OUTAGE, "unusable")] * 2


@pytest.mark.parametrize("error", [KeyError("field"), ValueError("odd"), TimeoutError()], ids=repr)
@pytest.mark.parametrize(("count", "code"), [(2, "failed_together"), (1, "failed_alone")])
def test_an_unknown_exception_is_a_retry_and_says_whether_it_struck_one_or_several(
    error: Exception, count: int, code: str
) -> None:
    class Raising(Answering):
        def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
            raise error

    outcomes = send_in_order(settings(), {"orders": Raising()}, "orders", [message(n) for n in range(count)])
    assert [(o.result, o.code, o.error) for o in outcomes] == [(Result.RETRY, code, repr(error))] * count


@pytest.mark.parametrize(("answer", "error"), [
    (lambda: [Outcome.sent()], "returned 1 outcomes for 2 messages"),
    (lambda: [Outcome.sent(), None], "returned 2 outcomes for 2 messages, among them NoneType"),
    (lambda: None, "'NoneType' object is not iterable"),
    (lambda: [Outcome.retry(503, "busy")] * 2, "code and error of an outcome are text"),  # type: ignore[arg-type]
    (lambda: [Outcome.outage("busy", "later", retry_after="30")] * 2, "a number of seconds"),  # type: ignore[arg-type]
], ids=["too few", "one is None", "nothing", "a number as code", "a text as seconds"])  # fmt: skip
def test_a_wrong_answer_of_a_publisher_says_nothing_of_any_message(answer: Any, error: str) -> None:
    outcomes = outcomes_of(lambda _: answer(), "orders", [message(0), message(1)])
    assert [(o.result, o.code) for o in outcomes] == [(Result.RETRY, "failed_together")] * 2
    assert error in str(outcomes[0].error)


def steps(messages: Sequence[LeasedMessage], publisher: Answering, **destination: Any) -> list[Step]:
    """What becomes of a batch."""
    return [
        verdict.step for verdict in send(settings(destination=destination), {"orders": publisher}, "orders", messages)
    ]


def test_of_a_batch_only_what_has_failed_before_is_replaced_by_a_newer_message() -> None:
    batch = [message(n, key=key, latest=n != 4, attempts=attempts)
             for n, (key, attempts) in enumerate([("a", 2), ("a", 1), ("b", 1), ("a", 1), ("b", 2)], 1)]  # fmt: skip
    publisher = Answering()
    assert steps(batch, publisher) == [Step.DISCARDED, Step.SENT, Step.SENT, Step.SENT, Step.SENT]
    assert sorted(n for call in publisher.calls for n in call) == [2, 3, 4, 5]


@pytest.mark.parametrize(("on_dead", "second"), [("block", Step.BEHIND), ("skip", Step.SENT)])
def test_what_must_not_be_sent_stops_its_key_alone(on_dead: str, second: Step) -> None:
    batch = [message(1, key="a", age=99.0), message(2, key="a"), message(3), message(4, age=99.0), message(5)]
    publisher = Answering()
    expected = [Step.DEAD, second, Step.SENT, Step.DEAD, Step.SENT]
    assert steps(batch, publisher, on_dead=on_dead, max_age=50) == expected
    assert sorted(n for call in publisher.calls for n in call) == [*([2] if second is Step.SENT else []), 3, 5]
