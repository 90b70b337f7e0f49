"""Messages for the publishers, and what becomes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

from outbox_tasks.destinations import Publisher, load, outcomes_of
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.relay.send import send_in_order
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from tests.conftest import eventually
from tests.contract.counterparts import Counterpart

SENT = Outcome.sent()

LEEWAY = 8.0
"""Seconds that a busy machine may add to a time limit."""


def loaded(url: str, **values: Any) -> Publisher:
    """The publisher of a destination `orders` with this URL; `destination` adds to what is configured of it."""
    settings = Settings(
        destinations={"orders": {"url": url, **values.pop("destination", {})}}, source="/shop", **values
    )
    return load(settings.destinations["orders"], settings)


def configured(url: str, **values: Any) -> tuple[Destination, Settings]:
    """What a publisher of this URL is made with."""
    settings = Settings(destinations={"orders": {"url": url}}, **values)
    return settings.destinations["orders"], settings


def message(number: int = 0, **fields: Any) -> LeasedMessage:
    """A message whose payload is its number."""
    plain: dict[str, Any] = {
        "id": f"0190a5d2-7c4e-7000-8000-{number:012d}",
        "event_type": "order.created",
        "destination": "orders",
        "key": None,
        "payload": b'{"n": %d}' % number,
        "content_type": "application/json",
        "headers": {},
        "aggregate_type": None,
        "aggregate_id": None,
        "created_at": datetime(2030, 1, 2, 3, 4, 5, 678, UTC),
        "attempts": 1,
        "seq": number,
    }
    return LeasedMessage(**{**plain, **fields})


WHOLE = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "tenant": "t1"})


def whole(prefix: str, **more: Any) -> dict[str, Any]:
    """The attributes of `WHOLE` with this prefix, and more that a transport adds."""
    attributes = {
        "id": WHOLE.id, "type": "order.created", "source": "/shop", "time": "2030-01-02T03:04:05.000678+00:00",
        "subject": "a", "partitionkey": "k", "traceparent": "00-a-b-01",
    }  # fmt: skip
    return {f"{prefix}{name}": value for name, value in (attributes | more).items()}


def sent_by(publisher: Publisher, *messages: LeasedMessage) -> list[Outcome]:
    """The outcomes as the pipe sees them, for which an exception is a reason to try again."""
    return outcomes_of(publisher.publish, "orders", messages)


def published(target: Counterpart, *messages: LeasedMessage, options: str = "", **values: Any) -> list[Outcome]:
    """The outcomes of one batch to the test's place, with a publisher of its own."""
    with closing(loaded(target.url(target.place) + options, **values)) as publisher:
        return publisher.publish(messages)


def settled(publisher: Publisher, *messages: LeasedMessage) -> list[Outcome]:
    """The outcomes of a batch, after what failed together was sent alone, as the relay does it."""
    outcomes = publisher.publish(messages)
    alone = [o.code == "failed_together" or o.result is Result.BEHIND for o in outcomes]
    return [publisher.publish([m])[0] if a else o for m, o, a in zip(messages, outcomes, alone, strict=True)]


def brief(outcomes: list[Outcome]) -> list[tuple[Result, str | None]]:
    return [(outcome.result, outcome.code) for outcome in outcomes]


def connected(publisher: Publisher) -> None:
    """Sends message 0 until it arrives. The first send also connects, and may need more than a short time limit."""
    eventually(lambda: sent_by(publisher, message(0)) == [SENT])


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What happens inside ends in time, also on a busy machine."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + LEEWAY


def sent_in_order(publisher: Publisher, messages: list[LeasedMessage]) -> list[Outcome]:
    """The outcomes of a batch whose messages may share keys. The relay gives a publisher one message of a key at a
    time. The long timeout leaves a busy machine time for all of them."""
    settings = Settings(destinations={"orders": {"url": "a://b"}}, send_timeout=600)
    return send_in_order(settings, {"orders": publisher}, "orders", messages)


def results(outcomes: list[Outcome]) -> list[Result]:
    return [outcome.result for outcome in outcomes]


def numbers(target: Counterpart) -> list[int]:
    """The numbers of the messages that arrived, in order."""
    return [json.loads(arrived.payload)["n"] for arrived in target.received()]
