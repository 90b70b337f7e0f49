"""Hands tasks over and begins their runs, over the storage."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from outbox_tasks.model import Step, Verdict, content
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.takes import Batch
from outbox_tasks.supervised.store import Fence, Runs
from tests.claims import take_batch
from tests.storage.conftest import Box

SAME = content(b"{}", {})
"""What a copy of a message of `Box.write` says."""


def sending(storage: Store) -> Batch:
    """A batch of what is due, whose send has begun."""
    batch = take_batch(storage)
    assert batch.messages
    return batch


def handed(batch: Batch, within: float = 100) -> list[Verdict]:
    """The broker has all tasks of a batch."""
    return [Verdict(message, Step.HANDED, within) for message in batch.messages]


def hand_over(storage: Store) -> int:
    """Hand over all that is due. Returns how many tasks that are."""
    count = 0
    while (batch := take_batch(storage)).messages:
        count += len(storage.leases.settle(batch.token, "orders", handed(batch))[0])
    return count


def anything_due(storage: Store) -> bool:
    """Whether a claim would find something."""
    return bool(storage.claims.due(1))


def run_of(box: Box, seq: int) -> Fence:
    return Fence(str(box.value("SELECT id FROM outbox_messages WHERE seq = %s", seq)), str(uuid4()))


def begun(box: Box, runs: Runs, seq: int, hold: float = 60) -> Fence:
    run = run_of(box, seq)
    assert runs.begin(run, SAME, hold, "a worker") is not None
    return run


def begin_of(run: Fence) -> dict[str, Any]:
    """The parameters of a begin."""
    return {**run._asdict(), "content": SAME, "hold": 60, "holder": "another worker"}


def ending(run: Fence, *following: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an end in a transaction of the application."""
    return {"run": json.dumps([run._asdict()]), "row": json.dumps(following), "soon": False}


def message() -> dict[str, Any]:
    return {"id": str(uuid4()), "event_type": "next", "destination": "orders", "text": "{}",
            "content_type": "application/json"}  # fmt: skip


def run_out(box: Box, *tables: str) -> None:
    for table in tables or ("runs",):
        box.connection.execute(f"UPDATE outbox_{table} SET locked_until = now()".encode())
