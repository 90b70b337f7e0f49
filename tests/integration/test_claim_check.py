"""Large payloads through the whole relay: in the storage once, and only what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks.errors import PayloadTooLarge
from outbox_tasks.model import Step
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.send import send
from outbox_tasks.relay.store import Store
from tests.claims import drain_batches, take_batch
from tests.conftest import MakeStore, Rows, Stream, seconds_from_now

LARGE = {"page": "x" * 5000}
BODY = b'{"page":"' + b"x" * 5000 + b'"}'


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    made = tmp_path / "storage"
    made.mkdir()
    return made


@pytest.fixture
def store(new_store: MakeStore, stream: Stream, storage: Path) -> Store:
    destination = {"url": stream.url, "max_bytes": 1000, "claim_check": f"file://{storage}"}
    return new_store(nudge=False, destinations={"orders": destination})


@pytest.fixture
def outbox(store: Store) -> Outbox:
    return Outbox(store.settings)


@pytest.fixture
def publishers(store: Store) -> Iterator[Publishers]:
    made = Publishers(store.settings)
    yield made
    made.close()


def test_a_large_payload_is_stored_by_the_relay_and_the_message_tells_where(
    store: Store, publishers: Publishers, rows: Rows, outbox: Outbox, engine: Engine, stream: Stream, storage: Path
) -> None:
    with Session(engine) as session, session.begin():
        large = outbox.publish(session, "page.made", LARGE, key="page:1")
        outbox.publish(session, "page.made", {"n": 1}, key="page:1")
    assert list(storage.iterdir()) == []
    assert drain_batches(store, publishers) == {Step.SENT: 2}
    first, second = stream.entries()
    assert (first["data"], first["content_type"]) == (b"", b"application/json")
    assert first["ce_dataref"].decode() == f"file://{storage}/{large}"
    assert (second["data"], "ce_dataref" in second) == (b'{"n":1}', False)
    assert [path.name for path in storage.iterdir()] == [str(large)]
    with fsspec.open(first["ce_dataref"].decode()) as file:
        assert file.read() == BODY
    assert [row.payload for row in rows.archived()] == [BODY, b'{"n":1}']


def test_a_rollback_leaves_nothing(
    store: Store, publishers: Publishers, rows: Rows, outbox: Outbox, engine: Engine, storage: Path
) -> None:
    with Session(engine) as session:
        session.begin()
        outbox.publish(session, "page.made", LARGE)
        session.rollback()
    assert rows.hot() == []
    assert not drain_batches(store, publishers)
    assert list(storage.iterdir()) == []


def test_a_repeated_delivery_writes_the_same_object(
    store: Store, publishers: Publishers, rows: Rows, outbox: Outbox, engine: Engine, stream: Stream, storage: Path
) -> None:
    """As when a worker dies after the send, before it has settled."""
    with Session(engine) as session, session.begin():
        id = outbox.publish(session, "page.made", LARGE)
    send(store.settings, publishers, "orders", take_batch(store).messages)
    rows.change(locked_until=seconds_from_now(-1))
    (storage / str(id)).write_bytes(b"half of it")
    assert drain_batches(store, publishers) == {Step.SENT: 1}
    assert len({entry["ce_dataref"] for entry in stream.entries()}) == 1
    assert len(stream) == 2
    assert {path.name: path.read_bytes() for path in storage.iterdir()} == {str(id): BODY}


def test_while_the_storage_is_down_small_messages_are_sent_and_large_ones_are_tried_again(
    store: Store, publishers: Publishers, rows: Rows, outbox: Outbox, engine: Engine, stream: Stream, storage: Path
) -> None:
    with Session(engine) as session, session.begin():
        large = outbox.publish(session, "page.made", LARGE)
        small = [outbox.publish(session, "page.made", {"n": n}) for n in range(3)]
    away = storage.rename(storage.with_name("away"))
    assert drain_batches(store, publishers) == {Step.SENT: 3, Step.LATER: 1}
    assert stream.ids() == [str(id) for id in small]
    row = rows.one(large)
    assert (row.status, row.attempts, row.last_error_code, row.payload) == ("pending", 1, "claim_check", BODY)
    assert "could not be stored in file://" in row.last_error
    away.rename(storage)
    rows.change(locked_until=seconds_from_now(-1))
    assert drain_batches(store, publishers) == {Step.SENT: 1}
    assert stream.ids() == [*map(str, small), str(large)]
    assert (storage / str(large)).read_bytes() == BODY


def test_a_payload_over_the_largest_size_is_refused_at_the_write(
    outbox: Outbox, rows: Rows, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.settings.destination.LARGEST_CLAIM_CHECK_BYTES", 5000)
    with Session(engine) as session, session.begin(), pytest.raises(PayloadTooLarge):
        outbox.publish(session, "page.made", LARGE)
    assert rows.hot() == []
