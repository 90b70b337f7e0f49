"""What people do wakes the claim: nothing waits for beat, which is not there, and nobody waits for the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
import redis
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.archive.replay import Replay
from outbox_tasks.local.ports import free_port
from outbox_tasks.operating import limits, wake
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import CLAIM_QUEUE
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.acting import acted, bury


def redrive(store: Store, rows: Rows) -> None:
    assert acted(store, "redrive", [UUID(id) for id in bury(rows)]).count == 1


def discard(store: Store, rows: Rows) -> None:
    """A dead letter that blocks a key."""
    ids = [UUID(id) for id in bury(rows, key="order:1")]
    rows.insert(key="order:1")
    assert acted(store, "discard", ids).count == 1


def try_now(store: Store, rows: Rows) -> None:
    ids = rows.insert(attempts=2, last_error_code="http_503", locked_until=seconds_from_now(900))
    assert acted(store, "try", ids, states=["retrying"]).count == 1


def try_a_destination(store: Store, rows: Rows) -> None:
    """Its circuit is open, and nothing waits for an attempt."""
    opened = (
        f"INSERT INTO {rows.tables.destinations} (name, opened_at, pause_until) VALUES ('orders', now(), 'infinity')"
    )
    with rows.engine.begin() as connection:
        connection.execute(text(opened))
    assert acted(store, "try", states=["retrying"], destination="orders").count == 0


def redrive_on_the_page(store: Store, rows: Rows) -> None:
    bury(rows)
    runner = Runner(store)
    runner.start()
    runner.begin("redrive", Filter(states=("dead",)), who="ann", why=None, token=uuid4())
    eventually(lambda: not runner.going())
    runner.close()


def replay(store: Store, rows: Rows) -> None:
    [id] = rows.insert()
    rows.settle(id)
    assert acted(store, "replay", [id], more=Replay(new_ids=True).facts).count == 1


def resume(store: Store, rows: Rows) -> None:
    rows.insert()
    limits.pause(store, "orders", "ann", None)
    assert limits.resume(store, "orders", "ann")


def cancel(store: Store, rows: Rows) -> None:
    """The first message of a key: the next one may be sent."""
    first, _ = rows.insert(2, key="order:1")
    with Session(rows.engine) as session, session.begin():
        assert Outbox(store.settings).cancel(session, UUID(first))


ACTS = [redrive, try_now, try_a_destination, discard, redrive_on_the_page, replay, resume, cancel]


@pytest.mark.parametrize("act", ACTS)
def test_an_act_wakes_the_claim(new_store: MakeStore, rows: Rows, broker_url: str, act: Callable[..., None]) -> None:
    with redis.Redis.from_url(broker_url) as client:
        client.delete(CLAIM_QUEUE)
        act(new_store(broker_url=broker_url), rows)
        eventually(lambda: client.llen(CLAIM_QUEUE))


@pytest.mark.parametrize("act", [redrive, resume, cancel])
def test_an_act_does_not_wait_for_a_broker_that_is_away(
    new_store: MakeStore, rows: Rows, broker_url: str, act: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is there is woken then all the same."""
    monkeypatch.setattr(wake, "_nudges", {})
    began = time.monotonic()
    act(new_store(broker_url=f"redis://127.0.0.1:{free_port()}/0"), rows)
    assert time.monotonic() - began < 30
    rows.clear()
    test_an_act_wakes_the_claim(new_store, rows, broker_url, act)
