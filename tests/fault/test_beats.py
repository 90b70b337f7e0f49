"""Beat is a wake-up, not a lock: more of them, or none, change nothing about what is delivered."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sqlalchemy import Engine

from outbox_tasks.broker.names import CLAIM_TASK
from outbox_tasks.settings import CLAIM_QUEUE
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import CALM, Here, check, drained, messages_locked, waiting_for_locks

MANY = 600
README = Path(__file__).parents[2] / "README.md"


def test_two_beats_and_four_claim_workers_deliver_each_message_once(
    relay: Relay, here: Here, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    small = {"singles": "all", **CALM}
    claimers = [relay.claim(f"claim{n}", **small) for n in range(4)]
    relay.publish(concurrency=2, **CALM)
    relay.beat(**CALM)
    relay.beat(**CALM)
    relay.ready()
    ids = rows.insert(MANY)
    with messages_locked(engine, schema):
        for _ in range(20):
            here.broker.app.send_task(CLAIM_TASK, queue=CLAIM_QUEUE)
        eventually(lambda: len(waiting_for_locks(engine, schema)) == 4)
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {row.attempts for row in rows.archived()} == {1}
    at_work = [claimer for claimer in claimers if re.search(r"claimed [1-9]\d* singles", claimer.logs())]
    assert len(at_work) > 1


def test_the_single_worker_of_readme_delivers_what_was_written_by_sql(relay: Relay, rows: Rows, stream: Stream) -> None:
    """Nobody nudges it: without its beat the row waits for ever."""
    [command] = re.findall(r"`celery (-A outbox_tasks worker [^`]*-n all@%h)`", README.read_text(encoding="utf-8"))
    relay.worker([sys.executable, "-m", "celery", *command.split(), "-l", "INFO"])
    relay.ready()
    ids = rows.insert(3)
    drained(rows)
    assert sorted(stream.ids()) == sorted(ids)
