"""Large payloads through the whole relay: in the storage once, and only what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks.celery import make_app
from outbox_tasks.errors import PayloadTooLarge
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Bundle
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.send import begin_and_send
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.claims import take
from tests.conftest import MakeSettings, MakeStore, Rows, Stream, seconds_from_now
from tests.integration.conftest import bundle_of

LARGE = {"page": "x" * 5000}
BODY = b'{"page":"' + b"x" * 5000 + b'"}'


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    made = tmp_path / "storage"
    made.mkdir()
    return made


@pytest.fixture
def mine(settings: MakeSettings, own_redis: EmbeddedValkey, stream: Stream, storage: Path) -> Settings:
    destination = {"url": stream.url, "max_bytes": 1000, "claim_check": f"file://{storage}"}
    return settings(broker_url=own_redis.url, nudge=False, destinations={"orders": destination})


@pytest.fixture
def store(new_store: MakeStore, mine: Settings) -> Store:
    return new_store(destinations=mine.destinations)


@pytest.fixture
def app(mine: Settings, store: Store) -> Iterator[Celery]:
    made = make_app(mine)
    made.finalize()
    yield made
    made.outbox_relay.close()
    made.close()


@pytest.fixture
def outbox(mine: Settings, store: Store) -> Outbox:
    return Outbox(mine)


def leased(store: Store, rows: Rows) -> Bundle:
    """All there is, whenever it is due."""
    rows.change(locked_until=seconds_from_now(-1))
    lease = str(uuid4())
    return bundle_of(take(store, {"orders": 100}, lease), lease)


def relay(app: Celery, store: Store, rows: Rows) -> str:
    bundle = leased(store, rows)
    return str(app.tasks["outbox_tasks.bundle"].apply(args=("orders", bundle.lease, list(bundle.tickets))).get())


def test_a_large_payload_is_stored_by_the_relay_and_the_message_tells_where(
    app: Celery, store: Store, rows: Rows, outbox: Outbox, engine: Engine, stream: Stream, storage: Path
) -> None:
    with Session(engine) as session, session.begin():
        large = outbox.publish(session, "page.made", LARGE, key="page:1")
        outbox.publish(session, "page.made", {"n": 1}, key="page:1")
    assert list(storage.iterdir()) == []
    assert relay(app, store, rows) == '{"sent": 2}'
    first, second = stream.entries()
    assert (first["data"], first["content_type"]) == (b"", b"application/json")
    assert first["ce_dataref"].decode() == f"file://{storage}/{large}"
    assert (second["data"], "ce_dataref" in second) == (b'{"n":1}', False)
    assert [path.name for path in storage.iterdir()] == [str(large)]
    with fsspec.open(first["ce_dataref"].decode()) as file:
        assert file.read() == BODY
    assert [row.payload for row in rows.archived()] == [BODY, b'{"n":1}']


def test_a_rollback_leaves_nothing(
    app: Celery, store: Store, rows: Rows, outbox: Outbox, engine: Engine, storage: Path
) -> None:
    with Session(engine) as session:
        session.begin()
        outbox.publish(session, "page.made", LARGE)
        session.rollback()
    assert rows.hot() == []
    assert app.tasks["outbox_tasks.claim"].apply().get() == "claimed 0 in 0 bundles, 0 dead"
    assert list(storage.iterdir()) == []


def test_a_repeated_delivery_writes_the_same_object(
    app: Celery, mine: Settings, store: Store, rows: Rows, outbox: Outbox, engine: Engine, stream: Stream, storage: Path
) -> None:
    """As when a worker dies after the send, before it has settled."""
    with Session(engine) as session, session.begin():
        id = outbox.publish(session, "page.made", LARGE)
    begin_and_send(store, Publishers(mine), leased(store, rows))
    (storage / str(id)).write_bytes(b"half of it")
    assert relay(app, store, rows) == '{"sent": 1}'
    assert len({entry["ce_dataref"] for entry in stream.entries()}) == 1
    assert len(stream) == 2
    assert {path.name: path.read_bytes() for path in storage.iterdir()} == {str(id): BODY}


def test_while_the_storage_is_down_small_messages_are_sent_and_large_ones_are_tried_again(
    app: Celery, store: Store, rows: Rows, outbox: Outbox, engine: Engine, stream: Stream, storage: Path
) -> None:
    with Session(engine) as session, session.begin():
        large = outbox.publish(session, "page.made", LARGE)
        small = [outbox.publish(session, "page.made", {"n": n}) for n in range(3)]
    away = storage.rename(storage.with_name("away"))
    assert relay(app, store, rows).startswith('{"sent": 3, ')
    assert stream.ids() == [str(id) for id in small]
    row = rows.one(large)
    assert (row.status, row.attempts, row.last_error_code, row.payload) == ("pending", 1, "claim_check", BODY)
    assert "could not be stored in file://" in row.last_error
    away.rename(storage)
    assert relay(app, store, rows) == '{"sent": 1}'
    assert stream.ids() == [*map(str, small), str(large)]
    assert (storage / str(large)).read_bytes() == BODY


def test_a_payload_over_the_largest_size_is_refused_at_the_write(
    outbox: Outbox, rows: Rows, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.settings.destination.CLAIM_CHECK_LARGEST", 5000)
    with Session(engine) as session, session.begin(), pytest.raises(PayloadTooLarge):
        outbox.publish(session, "page.made", LARGE)
    assert rows.hot() == []
