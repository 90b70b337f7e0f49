"""Tasks that are called while the broker is dead arrive as a direct call would have sent them, field by field."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from celery import Celery, canvas
from celery.app import base as celery_base
from celery.app import task as celery_task
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.conftest import settled
from tests.acceptance.nodes import Relay
from tests.acceptance.shapes import calls, make_app
from tests.conftest import Rows, eventually

CALLS = 240
"""Each shape twelve times, and more than two bundles."""

OURS = "00000000"
"""How the ids begin that the caller makes."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedValkey]:
    """The application's own broker, which dies and comes back, empty."""
    with EmbeddedValkey() as server:
        yield server


@pytest.fixture(scope="module")
def destinations(broker: EmbeddedValkey) -> dict[str, Any]:
    return {
        "tasks": {
            "url": f"celery://?broker={broker.url}&accept=json,pickle",
            "transport_options": {"priority_steps": [0, 3, 6, 9]},
        }
    }


class Notes:
    """What the worker's tasks wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return self.path.read_bytes().count(b"\n")

    def read(self) -> dict[str, dict[str, Any]]:
        """By task id; a task that ran twice would be seen. The worker has called those that were linked, under ids of
        its own."""
        found: dict[str, dict[str, Any]] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        for line in lines:
            told = json.loads(line)
            if not told["id"].startswith((OURS, "order")):
                told = json.loads(line.replace(told["id"], f"after {told['parent_id']}"))
            found[told["id"]] = told
        assert len(found) == len(lines)
        return found


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    made = Notes(tmp_path / "notes.jsonl")
    made.path.touch()
    return made


@contextmanager
def stock_worker(relay: Relay, broker: EmbeddedValkey, notes: Notes) -> Iterator[None]:
    """A stock worker of the application."""
    argv = [sys.executable, "-m", "celery", "-A", "tests.acceptance.shapes", "worker", "-l", "INFO", "-P", "solo"]
    own = {"SHAPES_BROKER": broker.url, "SHAPES_NOTES": str(notes.path)}
    with pytest.MonkeyPatch.context() as patch:
        # Celery refuses pickle to root, who runs tests in containers.
        for name, value in {**own, "C_FORCE_ROOT": "1"}.items():
            patch.setenv(name, value)
        worker = relay.worker([*argv, "-n", "stock@%h"])
    worker.ready()
    yield
    worker.teardown()
    relay.nodes.remove(worker)


def call_all(app: Celery, now: datetime) -> None:
    """Calls of all shapes, with the same ids and times whenever it is done."""
    numbers = itertools.count(1)

    def same() -> str:
        return str(UUID(int=next(numbers)))

    modules = [m for m in (celery_base, celery_task, canvas) if hasattr(m, "uuid")]
    patches = [mock.patch.object(module, "uuid", same) for module in modules]
    patches.append(mock.patch.object(app, "now", return_value=now))
    for patch in patches:
        patch.start()
    try:
        shapes = calls(app, now)
        for n in range(CALLS):
            shapes[n % len(shapes)][1](n)
    finally:
        mock.patch.stopall()


def test_calls_of_twenty_shapes_arrive_as_direct_calls_would_have(
    relay: Relay, broker: EmbeddedValkey, notes: Notes, engine: Engine, outbox: Outbox, rows: Rows
) -> None:
    app = make_app(broker.url)
    now = datetime.now(UTC) + timedelta(seconds=5)

    expected = CALLS + CALLS // 20 * (2 + 2 + 1)  # a chain of three, a group of three, a link
    with stock_worker(relay, broker, notes):
        call_all(app, now)
        eventually(lambda: len(notes) >= expected, 60)
    direct = notes.read()
    notes.path.write_text("")

    broker.kill()
    began = time.monotonic()
    with Session(engine) as session, session.begin(), outbox.capture(session):
        call_all(app, now)
    assert time.monotonic() - began < CALLS / 8  # so none of them waited for the broker
    assert len(rows.hot()) == CALLS + CALLS // 20 * 2

    broker.start()
    relay.worker([sys.executable, "-m", "celery", "-A", "outbox_tasks", "worker", "-l", "INFO", "-B", "-P", "solo"])
    relay.ready()
    settled(rows)
    with stock_worker(relay, broker, notes):
        eventually(lambda: len(notes) >= expected, 60)
    captured = notes.read()
    assert captured.keys() == direct.keys()
    for id, told in direct.items():
        assert comparable(captured[id]) == comparable(told)
    assert {row.state for row in rows.shown()} == {"sent"}


def comparable(told: dict[str, Any]) -> dict[str, Any]:
    """A TTL counts from the call, so a task that waited has less of it left. The next task of a chain comes from the
    worker, which was another process then."""
    properties = dict(told["properties"])
    expiration = properties.pop("expiration", None)
    assert (expiration is not None) == (told["expires"] is not None)
    if expiration is not None:
        assert 3000_000 < int(expiration) <= 7200_000
    if told["origin"].startswith(f"gen{os.getpid()}@"):
        return {**told, "properties": properties}
    properties.pop("reply_to")
    return {**told, "properties": properties, "origin": "worker", "reply_to": "worker"}
