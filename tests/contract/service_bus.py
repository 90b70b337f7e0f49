"""What the tests of Azure Service Bus have in common."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from outbox_tasks.model import LeasedMessage, Outcome, Result
from tests.contract.counterparts.azure_service_bus import Counterpart
from tests.contract.messages import loaded


def publish(target: Counterpart, *messages: LeasedMessage, options: str = "", **values: Any) -> list[Outcome]:
    """The outcomes of one batch, with a publisher of its own."""
    with closing(loaded(target.url(target.place) + options, **values)) as publisher:
        return publisher.publish(messages)


def brief(outcomes: list[Outcome]) -> list[tuple[Result, str | None]]:
    return [(outcome.result, outcome.code) for outcome in outcomes]


def sizes(target: Counterpart) -> list[int]:
    """How many messages came with each delivery."""
    return [len(delivery) for delivery in target.deliveries()]
