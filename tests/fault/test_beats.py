"""Beat is a wake-up, not a lock: more of them, or none, change nothing about what is delivered."""

from __future__ import annotations

import threading

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import check, drained

MANY = 4000


def test_two_beats_and_four_claim_workers_deliver_each_message_once(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine
) -> None:
    claimers = [relay.claim(f"claim{n}") for n in range(4)]
    relay.publish(concurrency=2)
    relay.beat()
    relay.beat()
    relay.ready()
    outbox = Outbox(relay.settings)
    ids: list[str] = []

    def write() -> None:
        for _ in range(MANY // 100):
            with Session(engine) as session, session.begin():
                made = [outbox.publish(session, "order.created", {}, to="orders") for _ in range(25)]
            ids.extend(map(str, made))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    drained(rows)
    assert len(ids) == MANY
    assert check(rows, stream, ids) == 0
    assert {row.attempts for row in rows.archived()} == {1}
    # More than one of them was at work, and no claim found another's messages.
    assert sum("claimed 0" not in line and "claimed" in line for c in claimers for line in c.logs().splitlines())
    eventually(lambda: all("outbox_tasks.claim[" in claimer.logs() for claimer in claimers), 30)


def test_without_beat_the_next_commit_wakes_the_claim_for_all_that_is_due(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine
) -> None:
    relay.claim()
    relay.publish()
    silent = rows.insert(500)
    relay.ready()
    with Session(engine) as session, session.begin():
        id = Outbox(relay.settings).publish(session, "order.created", {}, to="orders")
    drained(rows)
    assert check(rows, stream, [*silent, str(id)]) == 0
