"""When an outbox is in order, and when not."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text, update

from outbox_tasks.broker.names import QUEUES
from outbox_tasks.cli import outbox
from outbox_tasks.database.schema import qualified
from outbox_tasks.operating import pauses
from outbox_tasks.operating.health import examine
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.feeds import Feeds
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.heartbeat import LATE
from tests.conftest import Rows, seconds_from_now
from tests.integration.conftest import environment
from tests.integration.doctoring import found

STARTED = "2026-01-01T00:00:00.000+00:00"

Seen = Callable[..., None]


@pytest.fixture
def seen(rows: Rows) -> Seen:
    """Says when a worker, `beat` or `claim` was last seen, in seconds."""
    h = rows.tables.heartbeats

    def say(ago: float, name: str, kind: str = "", queues: tuple[str, ...] = QUEUES) -> None:
        facts = {"queues": list(queues), "started": STARTED}
        made = {"name": name, "kind": kind or name, "seen_at": seconds_from_now(-ago), "facts": facts}
        with rows.engine.begin() as connection:
            if not connection.execute(update(h).where(h.c.name == name).values(**made)).rowcount:
                connection.execute(h.insert().values(**made))

    return say


@pytest.fixture
def site(store: Store, seen: Seen) -> Settings:
    """A relay at work: its settings."""
    seen(1, "claim@here", "worker", ("outbox.claim", "outbox.maintain"))
    seen(1, "publish@here", "worker", ("outbox.publish", "outbox.drain"))
    seen(1, "claim")
    seen(1, "publish")
    seen(1, "beat")
    return store.settings


def codes(settings: Settings, worker: str | None = None) -> list[tuple[str, str]]:
    return [(finding.code, finding.about) for finding in examine(settings, worker)]


def test_an_idle_relay_is_healthy(site: Settings) -> None:
    assert examine(site) == []


def test_workers_that_share_a_name_are_reported_as_that_and_not_as_missing(
    site: Settings, store: Store, seen: Seen
) -> None:
    seen(300, "claim@here", "worker")
    seen(300, "publish@here", "worker")

    def beat(number: int) -> None:
        facts = {"queues": [QUEUES[number % 2]], "started": f"{number % 2}"}
        seen = [{"name": "celery@here", "kind": "worker", "ago": 0, "facts": facts}]
        store.ask("report/beat.sql", seen=json.dumps(seen), late=LATE)

    beat(0), beat(0)
    assert ("name", "celery@here") not in codes(site)
    beat(1)  # as after a restart
    assert ("name", "celery@here") not in codes(site)
    beat(0)
    assert codes(site) == [("name", "celery@here")]
    beat(0)
    assert ("name", "celery@here") not in codes(site)


def test_due_messages_for_an_unknown_destination_are_a_problem(site: Settings, rows: Rows) -> None:
    rows.insert(1, destination="new")
    [finding] = examine(site)
    assert (finding.code, finding.about) == ("unknown", "new")
    assert "after 60 min they are dead letters" in finding.text


def test_a_busy_relay_is_healthy(site: Settings, rows: Rows) -> None:
    rows.insert(1000)
    rows.insert(10, key="a")
    rows.insert(10, attempts=3, created_at=seconds_from_now(-9999), locked_until=seconds_from_now(60))
    rows.insert(10, status="dead", dead_at=seconds_from_now(-9999))
    assert examine(site) == []


@pytest.mark.parametrize("key", [None, "a"])
def test_a_message_that_is_due_for_longer_than_stale_after_is_a_problem(
    site: Settings, rows: Rows, key: str | None
) -> None:
    rows.insert(1, key=key, locked_until=seconds_from_now(-site.stale_after - 60))
    rows.insert(1000)
    [finding] = examine(site)
    assert (finding.code, finding.about) == ("stale", "orders")
    assert finding.text == "orders: the oldest message has been due for 6 min"


def test_old_messages_of_a_paused_or_failing_destination_are_no_problem(
    site: Settings, store: Store, rows: Rows
) -> None:
    rows.insert(5, locked_until=seconds_from_now(-9999))
    pauses.pause(store, "orders", "alice", None)
    assert examine(site) == []
    pauses.resume(store, "orders", "alice")
    assert codes(site) == [("stale", "orders")]
    for _ in range(site.breaker_failures):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
    assert examine(site) == []


def test_a_feed_that_fails_or_is_late_is_a_problem_and_so_is_its_queue_without_a_worker(
    site: Settings, store: Store, seen: Seen
) -> None:
    fed = site.replace(feeds={"eu": {"url": "sqlite:////no/such/file.db"}})
    assert codes(fed) == [("queue", "outbox.feed")]
    seen(1, "claim@here", "worker", ("outbox.claim", "outbox.maintain", "outbox.feed"))
    assert codes(fed) == []
    feeds = Feeds(store)
    feeds.take("eu", token := str(uuid4()))
    feeds.end("eu", token, clean=True, lag=(3, site.stale_after + 60))
    [problem] = examine(fed)
    assert (problem.code, problem.about, problem.text) == ("feed", "eu", "the feed eu has a row that waits for 6 min")
    feeds.take("eu", token)
    feeds.end("eu", token, clean=True, error="it is gone")
    table = qualified(site.database_schema, "outbox_feeds")
    with store.connection() as connection:
        connection.execute(text(f"UPDATE {table} SET failed_at = failed_at - interval '6 min'"))
    assert [one.text for one in examine(fed)] == ["the feed eu fails for 6 min: it is gone"]
    assert examine(site) == []


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queue_without_a_worker_is_a_problem(site: Settings, seen: Seen, queue: str) -> None:
    others = tuple({*QUEUES} - {queue})
    seen(600, "claim@here", "worker")
    seen(600, "publish@here", "worker", (queue,))
    seen(1, "rest@here", "worker", others)
    assert codes(site) == [("queue", queue)]
    assert f"no worker consumes {queue}: " in examine(site)[0].text
    assert " was last seen 10 min ago" in examine(site)[0].text


def test_a_missing_beat_is_a_problem(site: Settings, seen: Seen) -> None:
    seen(600, "beat")
    [finding] = examine(site)
    assert finding.code == "beat"
    assert "last ran 10 min ago" in finding.text


def test_beat_is_not_blamed_for_a_claim_worker_that_is_gone(site: Settings, seen: Seen) -> None:
    seen(28, "claim@here", "worker", ("outbox.claim", "outbox.maintain"))
    seen(32, "beat")
    assert codes(site) == []
    seen(48, "claim@here", "worker", ("outbox.claim", "outbox.maintain"))
    seen(52, "beat")
    assert codes(site) == [("queue", "outbox.claim"), ("queue", "outbox.maintain")]


def test_a_missing_claim_is_a_problem_if_something_is_due(site: Settings, seen: Seen, rows: Rows, store: Store) -> None:
    seen(90, "claim")
    assert examine(site) == []
    rows.insert(1, locked_until=seconds_from_now(-60))
    assert codes(site) == [("claim", "")]
    assert examine(site.replace(claim_interval=60.0)) == []
    pauses.pause(store, "orders", "alice", None)
    assert examine(site) == []


def test_messages_that_are_claimed_but_not_sent_are_a_problem(
    site: Settings, seen: Seen, rows: Rows, store: Store
) -> None:
    """Their leases run out, and they are claimed again and again."""
    seen(300, "publish")
    assert examine(site) == []
    rows.insert(3)
    rows.change(
        created_at=seconds_from_now(-240),
        locked_until=seconds_from_now(40),
        lease=uuid4(),
        last_error_code="lease_expired",
    )
    assert codes(site) == [("silent", "")]
    [finding] = examine(site)
    assert "messages have been due for 4 min, and nothing has been sent for 5 min" in finding.text
    assert "there is publish@here to do it" in finding.text
    assert found(site, "silent")["silent"].fact.startswith("Messages have been due for 4 min")
    pauses.pause(store, "orders", "alice", None)
    assert examine(site) == []
    pauses.resume(store, "orders", "alice")
    seen(5, "publish")
    assert examine(site) == []


def test_a_worker_without_a_fresh_heartbeat_is_a_problem(site: Settings, seen: Seen) -> None:
    assert examine(site, "publish@here") == []
    seen(600, "publish@here", "worker")
    assert codes(site, "publish@here") == [("worker", "publish@here")]
    assert codes(site, "claim@here") == []
    [finding] = examine(site, "other@here")
    assert finding.text == "other@here has no heartbeat; those that have: claim@here, publish@here"


def test_an_unreachable_database_is_a_problem(site: Settings) -> None:
    away = site.replace(database_url="postgresql://me:secret@127.0.0.1:1/none")
    [finding] = examine(away)
    assert finding.code == "database"
    assert "secret" not in finding.text
    assert codes(away, "claim@here") == [("database", "")]


def test_missing_tables_are_a_problem(site: Settings) -> None:
    assert codes(site.replace(database_schema="nobody_has_made_it")) == [("tables", "")]


class TestCommand:
    @pytest.fixture
    def run(self, site: Settings) -> Callable[..., Result]:
        env = environment(site)
        return lambda *arguments: CliRunner().invoke(outbox, ["health", *arguments], env=env)

    def test_its_exit_code_says_whether_there_is_a_problem(self, run: Callable[..., Result], seen: Seen) -> None:
        fine = run()
        assert (fine.exit_code, fine.stdout) == (0, "in order\n")
        assert json.loads(run("--json").stdout) == {"ok": True, "findings": []}
        seen(99, "beat")
        wrong = run()
        assert (wrong.exit_code, wrong.stdout.count("\n")) == (1, 1)
        told: dict[str, Any] = json.loads(run("--json").stdout)
        assert (told["ok"], told["findings"][0]["code"]) == (False, "beat")

    def test_percent_h_stands_for_this_host(self, run: Callable[..., Result], seen: Seen) -> None:
        assert run("--worker", "own@%h").exit_code == 1
        seen(1, f"own@{socket.gethostname()}", "worker")
        assert run("--worker", "own@%h").exit_code == 0
