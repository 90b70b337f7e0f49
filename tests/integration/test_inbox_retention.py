"""Marks are forgotten after their time: the oldest first, a batch at a time, and in nobody's way."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import redis
from sqlalchemy import Engine, func, insert, literal, select, text

from outbox_tasks.celery import make_app
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating import retention
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import MAINTAIN_QUEUE
from tests.conftest import MakeSettings, MakeStore, Rows
from tests.integration.inboxes import Inboxes
from tests.integration.plans import explained, pages

DAY = 86_400.0


@pytest.fixture
def inboxes(rows: Rows, engine: Engine, schema: str) -> Inboxes:
    return Inboxes(engine, schema)


class TestRetention:
    def test_only_old_marks_are_deleted(self, inboxes: Inboxes, new_store: MakeStore) -> None:
        store = new_store(inbox_retention=2 * DAY)
        fill(store, inboxes, 5, age=2 * DAY + 60)
        fill(store, inboxes, 4, age=2 * DAY - 60)
        inboxes.take("Session", "now")
        assert retention.forget(store, 100) == 5
        assert len(inboxes.marks()) == 5
        assert not inboxes.take("Session", "now")

    def test_a_batch_deletes_the_oldest_marks(self, inboxes: Inboxes, store: Store) -> None:
        fill(store, inboxes, 10, age=8 * DAY)
        fill(store, inboxes, 10, age=9 * DAY)
        assert retention.forget(store, 10) == 10
        assert {id.partition(" ")[0] for _, id in inboxes.marks()} == {str(8 * DAY)}

    def test_it_goes_on_until_no_old_mark_is_left_or_its_time_is_over(
        self, inboxes: Inboxes, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "ROWS_A_BATCH", 10)
        fill(store, inboxes, 35, age=8 * DAY)
        monkeypatch.setattr(retention, "RUN_SECONDS", 0)
        assert retention.forget_marks(store) == (10, True)
        monkeypatch.setattr(retention, "RUN_SECONDS", 60)
        assert retention.forget_marks(store) == (25, False)

    def test_it_skips_locked_marks(self, inboxes: Inboxes, store: Store) -> None:
        fill(store, inboxes, 10, age=8 * DAY)
        i = store.tables.inbox
        with inboxes.engine.connect() as connection:
            held = connection.scalars(select(i.c.message_id).limit(3).with_for_update()).all()
            assert retention.forget(store, 100) == 7
            assert {id for _, id in inboxes.marks()} == set(held)
        assert retention.forget(store, 100) == 3

    def test_maintenance_deletes_marks_and_queues_itself_for_the_rest(
        self,
        inboxes: Inboxes,
        store: Store,
        settings: MakeSettings,
        own_redis: EmbeddedValkey,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        retention.maintain(store)
        monkeypatch.setattr(retention, "ROWS_A_BATCH", 10)
        monkeypatch.setattr(retention, "RUN_SECONDS", 0)
        fill(store, inboxes, 15, age=8 * DAY)
        app = make_app(settings(broker_url=own_redis.url))
        app.finalize()
        maintain = app.tasks["outbox_tasks.maintain"]
        try:
            assert maintain.apply().get() == "made 0 partitions, forgot 10 marks, dropped 0 days"
            with redis.Redis.from_url(own_redis.url) as client:
                sent: bytes = client.lpop(MAINTAIN_QUEUE)
                assert json.loads(sent)["headers"]["task"] == maintain.name
                assert maintain.apply().get() == "made 0 partitions, forgot 5 marks, dropped 0 days"
                assert not client.exists(MAINTAIN_QUEUE)
            fill(store, inboxes, 15, age=8 * DAY)
            own_redis.kill()
            assert maintain.apply().get() == "made 0 partitions, forgot 10 marks, dropped 0 days"
        finally:
            app.outbox_relay.close()
            app.close()


def test_deleting_reads_no_more_rows_than_it_deletes(inboxes: Inboxes, store: Store) -> None:
    """Also with statistics of when the table was small."""
    fill(store, inboxes, 10, age=8 * DAY)
    with inboxes.engine.begin() as connection:
        connection.execute(text(f"ANALYZE {store.tables.inbox}"))
    fill(store, inboxes, 20_000, age=8 * DAY)
    fill(store, inboxes, 20_000, age=DAY)
    plan = explained(store, "inbox/forget.sql", {"keep": 7 * DAY, "most": 1000})[1:-1]  # without the count
    assert [node["Node Type"] for node in plan] == ["ModifyTable", "Limit", "LockRows", "Index Scan", "Tid Scan"]
    assert plan[3]["Index Name"] == "outbox_inbox_received_at"
    assert pages(plan) < 1000 * 5


def fill(store: Store, inboxes: Inboxes, count: int, *, age: float) -> None:
    """Commit marks of this age, whose ids begin with it."""
    i = store.tables.inbox
    made = select(
        literal("billing"),
        func.concat(literal(str(age)), " ", func.gen_random_uuid()),
        func.clock_timestamp() - literal(timedelta(seconds=age)),
    ).select_from(func.generate_series(1, count))
    with inboxes.engine.begin() as connection:
        connection.execute(insert(i).from_select(["consumer", "message_id", "received_at"], made))
