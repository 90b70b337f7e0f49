"""What people see of feeds: the commands, the page, the doctor, metrics; and how their tasks are woken."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner

from outbox_tasks.broker.broker import Broker
from outbox_tasks.cli import outbox
from outbox_tasks.database.schema import qualified
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.feeds import nudge
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Role
from tests.conftest import MakeSettings, MakeStore
from tests.feeds.places import woken_feeds
from tests.integration.browsing import Browser, visitor
from tests.integration.conftest import environment
from tests.integration.doctoring import found

WHY = "the file <b>is gone</b>"


@pytest.fixture
def fed(settings: MakeSettings) -> Settings:
    feeds = {name: {"url": f"sqlite:////no/such/{name}.db"} for name in ("shop", "gone")}
    return settings(feeds=feeds, destinations={"orders": {"url": "a://b"}})


@pytest.fixture
def store(new_store: MakeStore, fed: Settings) -> Store:
    """`shop` has two rows that wait, `gone` has failed for an hour."""
    store = new_store(feeds=fed.feeds, destinations=fed.destinations)
    feeds = Feeds(store)
    feeds.take("shop", token := str(uuid4()))
    feeds.end("shop", token, lag=(2, 7.0))
    feeds.take("gone", token)
    feeds.end("gone", token, error=WHY, lag=(3, 9000.0))
    table = qualified(fed.database_schema, "outbox_feeds")
    store.query(f"UPDATE {table} SET failed_at = failed_at - interval '1 hour'")
    return store


@pytest.fixture
def run(store: Store, broker_url: str) -> Callable[..., str]:
    feeds = {name: {"url": place.url} for name, place in (store.settings.feeds or {}).items()}
    env = {**environment(store.settings, broker_url=broker_url, feeds=feeds), "COLUMNS": "80"}
    return lambda *arguments: CliRunner().invoke(outbox, arguments, env=env).stdout


def test_the_status_shows_feeds_those_in_trouble_first(run: Callable[..., str]) -> None:
    problems = " ".join(run("status").split())
    assert f"The feed gone can't be read for 60 min: {WHY}" in problems
    assert "outbox.feed: none was ever seen." in problems
    seen = json.loads(run("status", "--json"))
    assert [(one["name"], one["waiting"], one["error"]) for one in seen["feeds"]] == [
        ("gone", 3, WHY),
        ("shop", 2, None),
    ]
    assert "outbox.feed" in seen["queues"]


def test_the_page_shows_feeds_and_what_their_sources_say_is_text(store: Store, fed: Settings) -> None:
    with closing(Page(fed, who=visitor)) as page:
        body = Browser(page, Role.LOOK).read("/")
    assert "fails for 60 min" in body
    assert "&lt;b&gt;is gone" in body
    assert body.index(">gone<") < body.index(">shop<")


def test_the_doctor_names_a_source_that_fails_and_a_wrong_query_for_feeds(store: Store, fed: Settings) -> None:
    seen = found(fed, "feed_list", "feed_fails", "feed_late")
    assert seen.keys() == {"feed_fails"}
    assert WHY in seen["feed_fails"].fact
    for wrong in ("SELECT nothing", "SELECT 1", "no query", "SELECT * FROM pg_authid"):
        asked = found(fed.replace(feeds={**fed.feeds, "list": wrong}), "feed_list")
        assert "feeds.list" in asked["feed_list"].fact
    away = fed.replace(database_url="postgresql://127.0.0.1:1/shop", feeds={"list": "SELECT 1"})
    with closing(Store.connect(away)) as gone, pytest.raises(DatabaseUnavailable):
        FeedList(gone).listed()


def test_a_feed_that_nobody_looks_at_any_more_is_forgotten(store: Store) -> None:
    feeds = Feeds(store)
    feeds.forget(3600, 10)
    assert len(feeds.states()) == 2
    feeds.forget(-60, 10)  # gone is tried again in some seconds
    assert feeds.states() == []


def test_one_task_of_each_feed_waits_at_most(
    settings: MakeSettings, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nudge, "BEGIN_SECONDS", 60.0)  # this machine may be slow
    broker = Broker(Celery("relay", broker=broker_url, set_as_current=False), settings(broker_url=broker_url))
    assert [nudge.wake_feed(broker, name) for name in ("eu", "eu", "us")] == [True, False, True]
    assert woken_feeds(broker_url) == ["eu", "us"]
    nudge.feed_begins(broker, "eu")
    assert nudge.wake_feed(broker, "eu")
    for n in range(nudge.WAITING_TASKS_AT_MOST):  # nobody takes them
        nudge.wake_feed(broker, f"tenant-{n}")
    assert len(woken_feeds(broker_url)) == nudge.WAITING_TASKS_AT_MOST
