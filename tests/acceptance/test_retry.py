"""What fails is tried again, later or never, and what is rubbish stops nobody.

Beat is not running: whatever happens here, the nudge after a commit and Celery's own retry have done it.
"""

from __future__ import annotations

from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.relay.store.claims import GRACE
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually, seconds_from_now


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return {"backoff_base": 0.2, "backoff_cap": 1, "queue_lease": 6}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    return cluster(relay, [relay.claim(), relay.publish()])


@pytest.fixture
def publish(celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox) -> Any:
    """Publishes one message in a transaction of its own; returns its id."""

    def commit(to: str, payload: Any = "{}") -> str:
        with Session(engine) as session, session.begin():
            return str(outbox.publish(session, "order.created", payload, to=to))

    return commit


def test_a_commit_is_delivered_without_beat(publish: Any, stream: Stream) -> None:
    ids = []
    for _ in range(5):
        ids.append(publish("orders"))
        eventually(lambda: stream.ids()[-1:] == ids[-1:])


def test_rows_written_without_a_nudge_are_sent_after_the_next_nudge(publish: Any, rows: Rows, stream: Stream) -> None:
    silent = rows.insert(3)
    nudged = publish("orders")
    eventually(lambda: {*silent, nudged} <= set(stream.ids()))


def test_a_message_that_fails_is_sent_by_celerys_own_retry(
    publish: Any, celery_setup: CeleryTestSetup, rows: Rows, stream: Stream
) -> None:
    id = publish("told", {"fail": 2})
    first = eventually(lambda: (row := rows.one(id)).last_error_code and row)
    assert first.lease is not None, "it keeps its lease, and is not claimed again"
    eventually(lambda: rows.state(id) == "sent")
    assert stream.ids().count(id) == 1
    [row] = [row for row in rows.archived() if str(row.id) == id]
    assert (row.attempts, row.last_error_code) == (3, "told")
    assert f"[{id}] retry: Retry in " in celery_setup.worker_cluster[1].logs()


def test_a_message_with_a_long_wait_gives_up_its_lease(
    publish: Any, engine: Engine, rows: Rows, stream: Stream
) -> None:
    id = publish("told", {"fail": 1, "retry_after": 8})  # longer than Celery waits
    row = eventually(lambda: (found := rows.one(id)).attempts and not found.begun and found)
    assert (row.lease, row.status, row.last_error_code, rows.state(id)) == (None, "pending", "told", "retrying")

    eventually(lambda: rows.one(id).locked_until <= now(engine))
    assert id not in stream.ids()
    publish("orders")
    eventually(lambda: id in stream.ids())


def now(engine: Engine) -> Any:
    """The time by the database's clock."""
    with engine.connect() as connection:
        return connection.scalar(select(func.now()))


def test_a_message_that_has_used_up_its_attempts_is_a_dead_letter(publish: Any, rows: Rows, stream: Stream) -> None:
    id = publish("told", {"fail": 100})
    eventually(lambda: rows.state(id) == "dead")
    row = rows.one(id)
    assert (row.attempts, row.last_error_code, row.lease) == (3, "told", None)
    assert row.dead_at is not None
    assert id not in stream.ids()


def ends(rows: Rows, id: str) -> tuple[str, str | None]:
    row = rows.one(id)
    return row.status, row.last_error_code


def test_invalid_rows_end_dead_and_hold_up_no_others(publish: Any, rows: Rows, stream: Stream) -> None:
    def headers(text: str) -> Any:
        return cast(literal(text), JSONB)

    long_ago = seconds_from_now(-2 * GRACE)
    rubbish = {
        "unknown_destination": rows.insert(3, destination="nowhere", locked_until=long_ago)
        + rows.insert(1, destination="", locked_until=long_ago),
        "bad_headers": [
            *rows.insert(1, headers=headers("[1, 2]")),
            *rows.insert(1, headers=headers('{"a": 1}')),
            *rows.insert(1, headers=headers('{"a": {"b": "c"}}')),
        ],
    }
    strange = rows.insert(1, event_type="", payload=b"") + rows.insert(1, event_type=": \n'" * 5000, key="\r\n" * 127)
    good = [publish("orders") for _ in range(10)]
    eventually(lambda: {*good, *strange} <= set(stream.ids()))
    for code, ids in rubbish.items():
        for id in ids:
            eventually(lambda: publish("orders") and ends(rows, id) == ("dead", code))  # noqa: B023
    assert not {id for ids in rubbish.values() for id in ids} & set(stream.ids())
