"""A writer that has leased its messages dies before it sends their tasks, or the broker loses these. The messages come
when their leases run out, each once."""

from __future__ import annotations

import signal
import subprocess
import sys

import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import PUBLISH_QUEUE
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually, reached
from tests.fault.conftest import CALM, check, drained

WRITER = """
import os, signal, sys, time
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session
from outbox_tasks import Outbox
from outbox_tasks.settings import Settings
from outbox_tasks.database.connection import engine_url

settings = Settings.model_validate_json(sys.stdin.read())
outbox = Outbox(settings)
outbox._writer.nudge()
while outbox._writer.nudge.grants.stopped:
    time.sleep(0.01)
event.listen(Session, "after_commit", lambda _: os.kill(os.getpid(), signal.SIGKILL), insert=True)
with Session(create_engine(engine_url(settings.database_url))) as session, session.begin():
    for _ in range(3):
        print(outbox.publish(session, "order.created", {}, to="orders"), flush=True)
"""


def test_the_broker_is_emptied_behind_a_writer_and_another_is_killed_between_its_commit_and_its_tasks(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, own_redis: EmbeddedValkey
) -> None:
    """The claim sees that the broker has forgotten all, and ends the writers' leases too."""
    with Session(engine) as session, session.begin():
        emptied = str(reached(Outbox(relay.settings)).publish(session, "order.created", {}, to="orders"))
    with redis.Redis.from_url(own_redis.url) as broker:
        eventually(lambda: broker.llen(PUBLISH_QUEUE))
        broker.flushall()
    relay.claim(**CALM)
    relay.publish(**CALM)
    relay.beat(**CALM)
    relay.ready()
    drained(rows)
    assert check(rows, stream, [emptied]) == 0

    given = relay.settings.model_dump_json(exclude_none=True)
    ended = subprocess.run([sys.executable, "-c", WRITER], input=given, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    ids = ended.stdout.split()
    assert len(ids) == 3
    assert {row.locked_by for row in rows.hot()} <= {None}  # they are there still, unless the machine is very busy
    drained(rows)
    assert check(rows, stream, [emptied, *ids]) == 0
    ends = {(row.attempts, row.last_error_code) for row in rows.archived() if str(row.id) in ids}
    assert ends == {(1, "direct_expired")}


def test_messages_that_need_no_claim_are_sent_while_there_is_none(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine
) -> None:
    relay.publish(**CALM)
    relay.ready()
    outbox = reached(Outbox(relay.settings))
    ids = []
    for _ in range(30):
        with Session(engine) as session, session.begin():
            ids.append(str(outbox.publish(session, "order.created", {}, to="orders")))
        eventually(lambda: len(stream) == len(ids))
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {(row.attempts, row.last_error_code) for row in rows.archived()} == {(1, None)}
