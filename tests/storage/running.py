"""Hands tasks over and begins their runs, over the storage."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from outbox_tasks.model import Bundle, Step, Ticket, Verdict, content
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.runs import Run, Runs
from tests.storage.conftest import Box
from tests.storage.test_drain import _claim

SAME = content(b"{}", {})
"""What a copy of a message of `Box.write` says."""


def sending(storage: Store) -> Bundle:
    """One bundle of what is due, whose send has begun."""
    [bundle] = _claim(storage)
    assert len(storage.begin(bundle)) == len(bundle.tickets)
    return bundle


def handed(bundle: Bundle, within: float = 100) -> list[Verdict]:
    """The broker has all tasks of a bundle."""
    return [Verdict(Ticket(ticket.id, ticket.attempt + 1, ""), Step.HANDED, within) for ticket in bundle.tickets]


def hand_over(storage: Store) -> int:
    """Hand over all that is due. Returns how many tasks that are."""
    count = 0
    for bundle in _claim(storage):
        assert storage.begin(bundle)
        count += len(storage.settle(bundle.lease, "orders", handed(bundle)))
    return count


def run_of(box: Box, seq: int) -> Run:
    return Run(str(box.value("SELECT id FROM outbox_messages WHERE seq = %s", seq)), str(uuid4()))


def begun(box: Box, runs: Runs, seq: int, hold: float = 60) -> Run:
    run = run_of(box, seq)
    assert runs.begin(run, SAME, hold, "a worker") is not None
    return run


def begin_of(run: Run) -> dict[str, Any]:
    """The parameters of a begin."""
    return {**run._asdict(), "content": SAME, "task": "", "task_id": "", "made": run.id, "body": "", "hold": 60,
            "holder": "another worker"}  # fmt: skip


def ending(run: Run, *following: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an end in a transaction of the application."""
    return {"run": json.dumps([run._asdict()]), "row": json.dumps(following), "soon": False}


def message() -> dict[str, Any]:
    return {"id": str(uuid4()), "event_type": "next", "destination": "orders", "text": "{}",
            "content_type": "application/json"}  # fmt: skip


def run_out(box: Box, *tables: str) -> None:
    for table in tables or ("runs",):
        box.connection.execute(f"UPDATE outbox_{table} SET locked_until = now()".encode())
