"""An id that the application chose: the same call again is the same message, another message under it is an error."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Message, Outbox
from outbox_tasks.errors import ReusedId
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.store import Store
from tests.claims import take_batch
from tests.conftest import Rows

ID = UUID(int=5)
SAID: dict[str, Any] = {"key": "k", "headers": {"a": "b"}, "aggregate_type": "order", "aggregate_id": "5"}


def publish(outbox: Outbox, engine: Engine, payload: Any = "x", **fields: Any) -> UUID:
    with Session(engine) as session, session.begin():
        return outbox.publish(session, fields.pop("event_type", "a"), payload, id=ID, **{**SAID, **fields})


def send_all(store: Store) -> None:
    batch = take_batch(store)
    assert batch.messages
    store.leases.settle(batch.token, "orders", [Verdict(message, Step.SENT) for message in batch.messages])


def test_among_messages_without_one_it_is_known_again(outbox: Outbox, engine: Engine, rows: Rows) -> None:
    for _ in range(2):
        with Session(engine) as session, session.begin():
            outbox.publish_many(session, [Message("a", "x", id=ID), Message("b", "x")])
    assert [row.event_type for row in rows.hot()] == ["a", "b", "b"]


OTHERS: list[dict[str, Any]] = [
    {"payload": "y"}, {"event_type": "b"}, {"key": None}, {"headers": {}}, {"aggregate_type": None},
    {"aggregate_id": "6"}, {"content_type": "application/x-other"},
]  # fmt: skip


@pytest.mark.parametrize("sent", [False, True], ids=["waiting", "sent"])
def test_other_content_is_an_error_and_leaves_all_as_it_was(
    outbox: Outbox, engine: Engine, rows: Rows, store: Store, sent: bool
) -> None:
    publish(outbox, engine)
    if sent:
        send_all(store)
    for other in OTHERS:
        with pytest.raises(ReusedId, match=f"{ID} was refused.*other content"):
            publish(outbox, engine, **other)
    [row] = (*rows.hot(), *rows.archived())
    assert (row.payload, row.event_type, row.key) == (b"x", "a", "k")
