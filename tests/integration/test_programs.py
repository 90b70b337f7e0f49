"""Short programs: they commit and end, and what they published goes out at once, not at the next tick of beat."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis

from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import CLAIM_QUEUE, Settings
from tests.conftest import MakeSettings, Rows

BEGIN = """
import atexit, multiprocessing, os, sys, threading
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from outbox_tasks import Outbox
from outbox_tasks.database.engine import engine_url
from outbox_tasks.settings import Settings
from outbox_tasks.writing import broker_nudge, nudge

settings = Settings.model_validate_json(sys.argv[1])
nudge.EXIT_SECONDS = float(sys.argv[2])
outbox = Outbox(settings)

def publish():
    engine = create_engine(engine_url(settings.database_url))
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", {}, to="orders")
    engine.dispose()
"""

ENDS = {
    "at the end of the file": "publish()",
    "an exception in another thread": "thread = threading.Thread(target=publish)\nthread.start()\nraise ValueError",
    "in an exit function": "atexit.register(publish)",
    "a child of multiprocessing": (
        "child = multiprocessing.get_context('fork').Process(target=publish)\nchild.start()\nchild.join()"
    ),
}
"""How programs end."""

Run = Callable[..., int]

LONG = 300.0
"""Seconds for which a program may wait at its end: the machine may be very busy."""


@pytest.fixture
def run(settings: MakeSettings, rows: Rows) -> Run:
    """Runs a program. Returns its exit code."""

    def run(program: str, broker_url: str, at_exit: float = LONG) -> int:
        given: Settings = settings(broker_url=broker_url)
        argv = [sys.executable, "-c", BEGIN + program, given.model_dump_json(exclude_none=True), str(at_exit)]
        return subprocess.run(argv, timeout=LONG, check=False).returncode

    return run


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_program_that_commits_and_ends_has_woken_the_claim(
    run: Run, rows: Rows, own_redis: EmbeddedValkey, end: str
) -> None:
    run(end, own_redis.url)
    assert rows.hot()
    with redis.Redis.from_url(own_redis.url) as broker:
        assert broker.llen(CLAIM_QUEUE) == 1


def test_a_program_ends_soon_though_the_broker_does_not_answer(run: Run, rows: Rows) -> None:
    """If it waited for the broker, it would wait for longer than this test does."""
    patient = f"broker_nudge.BROKER_SECONDS = {10 * LONG}\npublish()"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert run(patient, f"redis://127.0.0.1:{silent.getsockname()[1]}/0", at_exit=0.1) == 0
    assert len(rows.hot()) == 1
