"""Problems of supervised tasks."""

from __future__ import annotations

import json
from uuid import uuid4

from outbox_tasks.relay.store import Store
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.doctoring import beats, found

CODES = ("tasks_unsupervised", "tasks_wait")
SHOP = {"shop": {"url": "celery://?queue=shop&broker=redis://localhost:1/0", "confirm": "run"}}


def hand_over(rows: Rows, ago: float, count: int = 1, **values: object) -> None:
    """Tasks were handed over so many seconds ago, and have not begun."""
    times = {"handed_at": seconds_from_now(-ago), "locked_until": seconds_from_now(3600)}
    rows.insert(count, **{"destination": "shop", "lease": uuid4(), "attempts": 1, **times, **values})


def test_a_queue_that_no_supervising_worker_serves(settings: MakeSettings, rows: Rows) -> None:
    shop = settings(destinations=SHOP)
    assert found(shop, *CODES) == {}
    hand_over(rows, 1, 3)
    missing = found(shop, *CODES)["tasks_unsupervised"]
    assert missing.fact == (
        "No worker with supervise serves the queue shop (none was ever seen), and 3 tasks wait there."
    )
    beats(rows, "tasks", name="other@host (tasks)", queues=["mails"])
    assert "Those alive serve mails." in found(shop, *CODES)["tasks_unsupervised"].fact
    beats(rows, "tasks", name="shop@host (tasks)", queues=["shop"])
    assert found(shop, *CODES) == {}
    with rows.engine.begin() as connection:
        connection.execute(rows.tables.heartbeats.update().values(seen_at=seconds_from_now(-120)))
    assert "one was last seen 2 min ago" in found(shop, *CODES)["tasks_unsupervised"].fact


def test_tasks_that_wait_for_long(settings: MakeSettings, rows: Rows) -> None:
    shop = settings(destinations=SHOP)
    beats(rows, "tasks", name="shop@host (tasks)", queues=["shop"])
    hand_over(rows, 60)
    hand_over(rows, 900, begun=True)  # it runs
    assert found(shop, *CODES) == {}
    hand_over(rows, 900, outages=-1)
    wait = found(shop, *CODES)["tasks_wait"]
    assert "2 tasks of shop wait in the queue shop, the first for 15 min; sent again: 1." in wait.fact


def test_a_stored_task_says_its_queue_or_hides_none_of_the_others(store: Store, rows: Rows) -> None:
    envelopes = [
        json.dumps({"declare": [{"queue": {"name": "mails"}}], "exchange": "x", "routing_key": "r"}),
        json.dumps({"declare": [], "exchange": "", "routing_key": "mails", "headers": {"note": "\0 and \\u0000"}}),
        json.dumps({"declare": [], "exchange": "x", "routing_key": "r"}),
        *("{", "5", '{"queue": "\\ud800"}', "[" * 60_000),
    ]
    for envelope in envelopes:
        rows.insert(2, headers={"celery-message": envelope}, handed_at=seconds_from_now(-9), begun=False)
    found = store.ask(
        "supervised/handed_over.sql",
        asked=json.dumps([{"destination": name, "queue": "celery"} for name in ("orders", "others")]),
    )
    assert {row[:3] for row in found} == {("orders", "mails", 4), ("orders", None, 10)}
