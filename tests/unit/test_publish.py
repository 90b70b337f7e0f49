"""Whatever a publisher does, each message has an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.relay.publishers import send

MESSAGES = [
    LeasedMessage(f"id-{n}", "order.created", "orders", None, b"{}", "", {}, None, None, datetime.now(UTC), 1)
    for n in range(2)
]


class Raising:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        raise self.error

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [KeyError("field"), ValueError("odd"), TimeoutError()], ids=repr)
@pytest.mark.parametrize(("count", "code"), [(2, "failed_together"), (1, "failed_alone")])
def test_an_unknown_exception_is_a_retry_and_says_whether_it_struck_one_or_several(
    error: Exception, count: int, code: str
) -> None:
    outcomes = send({"orders": Raising(error)}, "orders", MESSAGES[:count])  # type: ignore[dict-item]
    assert [(o.result, o.code, o.error) for o in outcomes] == [(Result.RETRY, code, repr(error))] * count


def test_a_destination_that_is_not_configured_here_is_a_retry() -> None:
    assert [o.code for o in send({}, "orders", MESSAGES)] == ["unknown_destination"] * 2
