"""Settle while the database is away, slow, or has given the lease to somebody else; and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from outbox_tasks.errors import DatabaseTooSlow, DatabaseUnavailable
from outbox_tasks.model import LeasedMessage, Step, Verdict
from outbox_tasks.relay import settle as module
from outbox_tasks.relay.settle import Listener, settle
from outbox_tasks.settings import Settings
from tests.contract.messages import message

SETTINGS = Settings(destinations={"orders": {"url": "a://b"}})
AWAY = DatabaseUnavailable(url="here", reason="away")
TOO_SLOW = DatabaseTooSlow(url="here", reason="slow")


class Tables:
    """Answers as PostgreSQL would, after it was away as often as it is told."""

    def __init__(self, away: Sequence[Exception] = (), ours: Callable[[int], bool] = lambda seq: True) -> None:
        self.settings = SETTINGS
        self.away, self.ours = list(away), ours
        self.calls: list[Any] = []
        self.traffic = SimpleNamespace(recovered=self.recovered, tripped=self.tripped)
        self.leases = self

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.away:
            raise self.away.pop(0)

    def settle(
        self, token: str, destination: str, verdicts: Sequence[Verdict], unhurried: bool = False
    ) -> tuple[set[int], bool]:
        self._call("settle", unhurried)
        return {verdict.message.seq for verdict in verdicts if self.ours(verdict.message.seq)}, True

    def sent_in_vain(self, messages: Sequence[LeasedMessage], *, tried_before: bool) -> None:
        self._call("in vain", [message.seq for message in messages], tried_before)

    def recovered(self, destination: str) -> None:
        self._call("recovered", destination)

    def tripped(self, destination: str, token: str, code: str | None, error: str | None) -> bool:
        self._call("tripped", code)
        return True


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time goes on only while somebody sleeps."""
    made = SimpleNamespace(now=1000.0, slept=[])

    def sleep(seconds: float) -> None:
        made.slept.append(seconds)
        made.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=sleep))
    return made


def verdicts(*steps: Step, **fields: Any) -> list[Verdict]:
    return [Verdict(message(number), step, **fields) for number, step in enumerate(steps, 1)]


def settled(tables: Tables, *given: Verdict, listener: Listener | None = None, began: float = 990.0) -> list[Step]:
    settled = settle(tables, "token", "orders", list(given), listener or Listener(), began)  # type: ignore[arg-type]
    assert settled.more
    return [verdict.step for verdict in settled.verdicts]


def test_it_waits_for_a_database_that_is_away_and_longer_each_time(clock: SimpleNamespace) -> None:
    tables = Tables([AWAY] * 5)
    assert settled(tables, *verdicts(Step.SENT)) == [Step.SENT]
    assert clock.slept == [0.05, 0.2, 0.5, 0.5, 0.5]
    assert tables.calls == [("settle", False)] * 6


def test_it_gives_up_when_the_time_of_the_send_is_over_but_tries_at_least_twice(clock: SimpleNamespace) -> None:
    tables = Tables([AWAY] * 10_000)
    with pytest.raises(DatabaseUnavailable):
        settled(tables, *verdicts(Step.SENT))
    patience = SETTINGS.sending_time_of("orders") + SETTINGS.statement_timeout
    assert patience - 1 < sum(clock.slept) <= patience
    tables, clock.slept = Tables([AWAY]), []
    real = tables.settle

    def stopped(*arguments: Any, **more: Any) -> Any:
        clock.now += 10_000
        return real(*arguments, **more)

    tables.settle = stopped  # type: ignore[method-assign]
    assert settled(tables, *verdicts(Step.SENT)) == [Step.SENT]


def test_a_settle_that_was_too_slow_gets_more_time_from_then_on() -> None:
    tables = Tables([AWAY, TOO_SLOW, AWAY])
    settled(tables, *verdicts(Step.SENT))
    assert tables.calls == [("settle", False), ("settle", False), ("settle", True), ("settle", True)]


@pytest.mark.parametrize("away", [[], [AWAY]])
def test_what_somebody_else_sends_again_is_stale_and_gets_a_note(away: list[Exception]) -> None:
    """After a try without an answer, this process may have settled it itself."""
    tables = Tables(away, ours=lambda seq: seq == 1)
    given = [*verdicts(Step.SENT, Step.SENT, Step.HANDED), Verdict(message(4), Step.DEAD, sent=False)]
    assert settled(tables, *given) == [Step.SENT, Step.STALE, Step.HANDED, Step.STALE]
    assert tables.calls[-1] == ("in vain", [2], bool(away))


@pytest.mark.parametrize(
    ("steps", "heard"),
    [
        ([Step.OUTAGE, Step.OUTAGE], ("tripped", "away")),
        ([Step.RETRY, Step.OUTAGE], ("tripped", "away")),
        ([Step.RETRY, Step.DEAD], ("recovered", "orders")),
        ([Step.LATER], ("recovered", "orders")),
        ([Step.OUTAGE, Step.SENT], None),  # the settle itself closes the circuit
        ([Step.OUTAGE, Step.HANDED], None),
        ([Step.OUTAGE, Step.DISCARDED], None),
        ([], None),
    ],
)
def test_the_breaker_hears_once_of_a_lease_of_which_nothing_arrived(steps: list[Step], heard: Any) -> None:
    """And not of what was not sent."""
    tables = Tables()
    unsent = verdicts(Step.DEAD, Step.DISCARDED, Step.BEHIND, Step.LATER, sent=False)
    settled(tables, *verdicts(*steps, code="away", error="gone"), *unsent)
    assert [call for call in tables.calls if call[0] != "settle"] == ([heard] if heard else [])


def test_the_listener_hears_all_in_its_order() -> None:
    heard = Mock(spec=Listener)
    outage = verdicts(Step.OUTAGE, Step.DEAD, code="away", error="gone")
    settled(Tables([AWAY]), *outage, listener=heard)
    assert heard.mock_calls == [
        call.sent("orders", outage), call.circuit_opened("orders", "away", "gone"), call.dead(outage[1]),
        call.done("orders", "token", outage, pytest.approx(10.05)),
    ]  # fmt: skip
    settled(Tables(ours=lambda seq: False), *verdicts(Step.DEAD), listener=heard)
    assert len(heard.dead.mock_calls) == 1  # somebody else decides whether it is dead
