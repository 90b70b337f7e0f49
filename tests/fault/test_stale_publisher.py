"""A publisher that was paused for longer than its lease: it neither sends nor settles what another holds by now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from uuid import UUID, uuid4

import psutil
import pytest
from sqlalchemy import Engine, text

from outbox_tasks.model import Verdict
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.send import send
from outbox_tasks.relay.settle import settle
from tests.acceptance.nodes import Relay, Worker, freeze
from tests.claims import begin, take
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import Here, archive_locked, waiting_for_locks

Sent = tuple[str, list[Verdict]]
"""The token of a lease, and what became of its message."""


@pytest.fixture
def published_by_another(here: Here) -> Callable[[str], Sent]:
    """Takes the message as soon as its lease ends, and sends it; does not settle yet."""

    def publish(id: str) -> Sent:
        [single] = eventually(lambda: take(here.store, {"orders": 10}))
        assert single.id == id
        message = begin(here.store, single)
        assert message is not None
        with closing(Publishers(here.store.settings)) as publishers:
            return single.token, send(here.store.settings, publishers, "orders", [message])

    return publish


def paused(relay: Relay, here: Here, rows: Rows) -> tuple[Worker, psutil.Process, str]:
    """A worker whose only process stands still, and the message that is in its hands."""
    worker = relay.publish()
    worker.ready()
    [child] = worker.container.pool()
    freeze(child)
    [id] = rows.insert()
    here.claim()
    worker.wait_for_log(f"[{id}] received")
    return worker, child, id


def test_a_paused_worker_does_not_begin_a_message_that_another_has_sent(
    relay: Relay, here: Here, rows: Rows, stream: Stream, published_by_another: Callable[[str], Sent]
) -> None:
    worker, child, id = paused(relay, here, rows)
    token, verdicts = published_by_another(id)
    child.resume()
    worker.wait_for_log(f"[{id}] ignored")
    assert stream.ids() == [id]
    settle(here.store, token, "orders", verdicts)
    [row] = rows.archived()
    assert (row.attempts, row.last_error_code) == (1, "lease_expired")


def test_a_worker_that_waits_for_the_row_while_another_claims_it_does_not_begin(
    relay: Relay, here: Here, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    worker, child, id = paused(relay, here, rows)
    lease = uuid4()
    with engine.begin() as connection:
        later = f"UPDATE {schema}.outbox_leases SET token = '{lease}', locked_until = now() + interval '600 s'"
        connection.execute(text(later))
        child.resume()
        eventually(lambda: waiting_for_locks(engine, schema))
    worker.wait_for_log(f"[{id}] ignored")
    row = rows.one(id)
    assert (row.lease, row.attempts, row.begun, stream.ids()) == (lease, 0, False, [])


def test_a_paused_worker_does_not_settle_a_message_that_another_has_sent(
    relay: Relay,
    here: Here,
    rows: Rows,
    stream: Stream,
    engine: Engine,
    schema: str,
    published_by_another: Callable[[str], Sent],
) -> None:
    worker = relay.publish(pool="solo")
    worker.ready()
    [id] = rows.insert()
    with archive_locked(engine, schema):
        here.claim()
        eventually(lambda: stream.ids() == [id])
        eventually(lambda: waiting_for_locks(engine, schema))
        worker.freeze()
        eventually(lambda: not waiting_for_locks(engine, schema))  # the server gives up by its own clock
    token, verdicts = published_by_another(id)
    worker.thaw()
    worker.wait_for_log(f"[{id}] ignored")
    row = rows.one(id)
    assert (row.lease, row.attempts, row.begun) == (UUID(token), 2, True)
    [verdict] = settle(here.store, token, "orders", verdicts).verdicts
    assert verdict.step == "sent"
    assert stream.ids() == [id, id]
    [row] = rows.archived()
    assert (row.attempts, row.last_error_code) == (2, "unsettled")
