"""Bridges over real tables, with a feed in SQLite."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from click.testing import CliRunner

from outbox_tasks.cli import outbox as commands
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import SourceTrouble
from outbox_tasks.feeds.bridge import Bridged, bridge, bridge_all
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.feeds.source import Source, open_source
from outbox_tasks.feeds.store import Copy, Feeds
from outbox_tasks.model import Step
from outbox_tasks.relay.send_all import send_all
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.worker.app import make_app
from tests.conftest import MakeSettings
from tests.feeds.places import woken_feeds
from tests.storage.conftest import Box
from tests.storage.test_drain import Receiver, drained
from tests.storage.test_drain import storage as storage


class App:
    """An application with a database of its own."""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, f"sqlite:///{path}"
        self.source = open_source("shop", self.url)
        self.source.init()
        self.database = sqlite3.connect(path, isolation_level=None)

    def write(self, count: int = 1, key: str | None = None, **fields: Any) -> list[str]:
        ids = [str(uuid4()) for _ in range(count)]
        message = {"event_type": "order.created", "text": "{}", **fields}
        for id in ids:
            self.insert(id, key, json.dumps(message))
        return ids

    def insert(self, id: str, key: str | None, message: str) -> None:
        self.database.execute(
            "INSERT INTO outbox_feed (id, ordering_key, message) VALUES (?, ?, ?)", (id, key, message)
        )

    def close(self) -> None:
        self.database.close()
        self.source.close()

    def left(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM outbox_feed").fetchone()[0])


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(tmp_path / "app.db")
    yield made
    made.close()


@pytest.fixture
def feeds(storage: Store) -> Feeds:
    return Feeds(storage)


def ids(box: Box) -> list[str]:
    return [str(id) for [id] in box.rows("SELECT id FROM outbox_messages ORDER BY seq")]


def run(feeds: Feeds, source: Any, storage: Store) -> Bridged:
    return bridge(feeds, source, storage.settings)


def wait_over(box: Box) -> None:
    """The pause after a failure, and the lease of a bridge that died, are over."""
    box.connection.execute("UPDATE outbox_feeds SET locked_until = '-infinity', not_before = NULL")


def test_what_was_written_is_copied_once_in_its_order_and_deleted(
    box: Box, feeds: Feeds, app: App, storage: Store
) -> None:
    written = app.write(2200) + app.write(
        3, "a key", destination="orders", headers={"a": "b"}, priority="high", latest=True
    )
    assert run(feeds, app.source, storage) == Bridged(copied=2203)
    assert ids(box) == written
    assert app.left() == 0
    assert box.rows(
        "SELECT key, headers, priority, latest, destination FROM outbox_messages ORDER BY seq DESC LIMIT 1"
    ) == [("a key", {"a": "b"}, 1, True, "orders")]
    assert box.value("SELECT count(*) FROM outbox_copied WHERE NOT deleted") == 0
    assert run(feeds, app.source, storage) == Bridged()
    box.check_books()


def test_rows_that_are_no_messages_become_dead_letters_and_stop_nobody(
    box: Box, feeds: Feeds, app: App, storage: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.feeds.rows.MESSAGE_BYTES", 150_000)
    bad = ["no json", "[]", "{}", '{"event_type": "a", "text": 1}', '{"event_type": "a", "data": "%"}',
           '{"event_type": "a", "text": "", "delay": -1}', '{"event_type": "a", "text": "", "headers": {"a": 1}}',
           '{"event_type": "a", "text": "", "deliver_at": "soon"}', "nul \0", '{"event_type": "", "text": ""}',
           '{"event_type": "a", "text": "", "deliver_at": "2030-01-01T00:00:00"}', 100_000 * "[",
           '{"event_type": "a", "text": "", "latest": 1}',
           '{"event_type": "a", "text": "' + 150_000 * "x" + '"}']  # fmt: skip
    for message in bad:
        app.insert(str(uuid4()), None, message)
    app.insert("x" * 36, None, '{"event_type": "a", "text": ""}')
    good = app.write(2)
    assert run(feeds, app.source, storage) == Bridged(copied=len(bad) + 3, dead=len(bad) + 1)
    assert ids(box)[-2:] == good
    assert app.left() == 0
    assert box.value("SELECT count(*) FROM outbox_dead WHERE destination = 'feed.shop'") == len(bad) + 1
    assert box.value("SELECT convert_from(payload, 'UTF8') FROM outbox_messages ORDER BY seq LIMIT 1") == "no json"
    assert "is not a JSON object" in box.value("SELECT error FROM outbox_trouble ORDER BY seq OFFSET 1 LIMIT 1")
    box.check_books()


def test_a_row_without_a_route_can_be_sent_once_there_is_one(
    box: Box, feeds: Feeds, app: App, settings: MakeSettings
) -> None:
    """It is a dead letter with all that the message has, not with the row's text."""
    stream = settings().destinations["orders"].url
    store = Store.connect(settings(database_schema=box.schema, destinations={"orders": stream, "audit": stream}))
    [lost] = app.write(1, "a key", event_type="order.lost", text='{"id": 1}', headers={"a": "b"}, delay=60)
    app.write(1, event_type="order.gone", delay=60, destination="gone")
    app.write(1, destination="orders")
    assert run(feeds, app.source, store) == Bridged(copied=3, dead=2)
    box.check_books()
    assert box.rows("SELECT destination, key FROM outbox_dead ORDER BY seq") == [
        ("feed.shop", "a key"), ("feed.shop", None)]  # fmt: skip
    assert box.rows("SELECT DISTINCT code, error LIKE '%. Add %' FROM outbox_trouble") == [("no_route", True)]
    env = {
        "OUTBOX_DATABASE_URL": str(store.settings.database_url),
        "OUTBOX_DATABASE_SCHEMA": box.schema,
        "OUTBOX_DESTINATIONS": json.dumps({"orders": stream, "audit": stream}),
    }
    box.connection.execute(b"INSERT INTO outbox_versions (version) VALUES (%d) ON CONFLICT DO NOTHING" % VERSION)
    for command in ("discard --error no_route", "replay --state discarded --to audit"):
        words = [*command.split(), "--destination", "feed.shop", "--yes", "--why", "there was no route"]
        done = CliRunner().invoke(commands, words, env=env)
        assert done.exit_code == 0, done.output
    receiver = Receiver()
    assert drained(store, receiver)[Step.SENT] == 3
    [sent] = [message for message in receiver.got if message.event_type == "order.lost"]
    assert (sent.headers["replayed-id"], sent.key, sent.payload, sent.headers["a"]) == (
        lost,
        "a key",
        b'{"id": 1}',
        "b",
    )
    store.close()


def test_what_only_the_database_refuses_is_found_by_halving(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    box.connection.execute(b"ALTER TABLE outbox_messages ADD CHECK (event_type <> 'refused')")
    first, _, last = app.write(7), app.write(1, event_type="refused"), app.write(5)
    assert run(feeds, app.source, storage) == Bridged(copied=13, dead=1)
    assert [id for id in ids(box) if id in {*first, *last}] == first + last
    box.check_books()


def test_rows_that_are_too_much_for_one_statement_are_copied_a_few_at_a_time_with_the_time_that_they_take(
    box: Box, app: App, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.feeds.bridge.COPY_BYTES", 4_000)
    written = app.write(3) + app.write(1, text="x" * 900_000) + app.write(20, text="y" * 500)
    store = Store.connect(settings(database_schema=box.schema, statement_timeout=0.1))
    sizes: list[int] = []
    limits: list[float | None] = []

    class Watched(Feeds):
        def copy(self, feed: str, token: str, rows: Sequence[Copy]) -> set[int] | None:
            sizes.append(sum(len(one.messages[0]["text"]) for one in rows))
            return super().copy(feed, token, rows)

    begin = store.transaction
    store.transaction = lambda limit=None: (limits.append(limit), begin(limit))[1]  # type: ignore[method-assign]
    assert bridge(Watched(store), app.source, store.settings) == Bridged(copied=24)
    assert ids(box) == written
    large, *others = sorted(sizes, reverse=True)
    assert large == 900_000
    assert max(others) <= 4_000
    assert max(limit for limit in limits if limit is not None) > 0.9
    assert app.left() == 0
    store.close()


def test_odd_ids_and_numbers_stop_nobody(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    app.database.execute(f"INSERT INTO outbox_feed (id, message) VALUES (CAST(x'{36 * 'ff'}' AS text), '{{}}')")
    with pytest.raises(sqlite3.IntegrityError):
        app.insert(f"{36 * 'a'}\0b", None, "{}")
    app.database.execute("INSERT INTO outbox_feed (number, id, message) VALUES (-5, ?, '{}')", [str(uuid4())])
    twice = app.write(1)[0]
    app.insert(twice, None, '{"event_type": "a", "text": ""}')
    app.database.execute(
        f"INSERT INTO outbox_feed (number, id, message) VALUES ({2**63 - 1}, ?, '{{}}')", [str(uuid4())]
    )
    assert run(feeds, app.source, storage) == Bridged(copied=5, dead=3)
    assert ids(box).count(twice) == 2
    assert app.left() == 0
    assert run(feeds, app.source, storage) == Bridged()
    box.check_books()


def test_a_row_of_any_size_is_copied_or_dead(box: Box, app: App, settings: MakeSettings) -> None:
    url = settings().destinations["orders"].url
    places = {"orders": {"url": url, "max_bytes": 2_000_000}}
    store = Store.connect(settings(database_schema=box.schema, destinations=places))
    large = [{}, {"headers": {"x": 70_000 * "x"}}, {"text": 700_000 * "\x01é"}, {"text": 600_000 * "\x01é"}]
    written = [app.write(1, **fields)[0] for fields in large]
    assert bridge(Feeds(store), app.source, store.settings, longest=60.0) == Bridged(copied=4, dead=2)
    assert ids(box) == written
    assert app.left() == 0
    headers, text = (error for [error] in box.rows("SELECT error FROM outbox_trouble ORDER BY seq"))
    assert "have 70,009 bytes" in headers
    assert "2100000 bytes" in text
    assert box.value("SELECT max(octet_length(payload)) FROM outbox_messages WHERE destination = 'orders'") == 1_800_000
    box.check_books()
    store.close()


def test_rows_that_the_source_keeps_are_trouble_that_is_told(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    """Without an end the bridge would read them again and again."""
    app.database.execute("CREATE TRIGGER keep BEFORE DELETE ON outbox_feed BEGIN SELECT RAISE(IGNORE); END")
    written = app.write(2)
    done = run(feeds, app.source, storage)
    assert done.copied == 2
    assert "its row 1 is still there after it was deleted" in str(done.error)
    app.database.execute("DROP TRIGGER keep")
    wait_over(box)
    assert run(feeds, app.source, storage) == Bridged()
    assert ids(box) == written


class Dying(Exception):
    pass


class Failing:
    """A source that fails, or after which the bridge dies, at the nth call."""

    def __init__(self, source: Source, at: int, error: Exception, *, after: bool) -> None:
        self.name, self._source, self._at, self._error, self._after = source.name, source, at, error, after

    def _once(self, act: Any, *arguments: Any) -> Any:
        self._at -= 1
        if self._at == 0 and not self._after:
            raise self._error
        found = act(*arguments)
        if self._at == 0:
            raise self._error
        return found

    def look(self, most: int) -> Any:
        return self._once(self._source.look, most)

    def delete(self, rows: Sequence[tuple[int, str]]) -> None:
        self._once(self._source.delete, rows)

    def lag(self) -> Any:
        return self._once(self._source.lag)


def test_what_a_dead_bridge_has_copied_is_deleted_first(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    app.write(3)
    with pytest.raises(Dying):
        run(feeds, Failing(app.source, 2, Dying(), after=False), storage)
    assert app.left() == 3
    wait_over(box)
    assert bridge(feeds, app.source, storage.settings, longest=60, stop=lambda: True).copied == 0
    assert app.left() == 0


def test_a_source_that_fails_is_left_alone_for_a_while(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    app.write(1)
    broken = Failing(app.source, 2, SourceTrouble(name="shop", url="", reason="gone"), after=False)
    done = run(feeds, broken, storage)
    assert done.copied == 1
    assert "gone" in str(done.error)
    [state] = feeds.states()
    assert (state.failures, state.error, state.holder) == (1, done.error, None)
    assert (state.not_before or 0) <= 1
    assert run(feeds, app.source, storage) == Bridged(taken=False)
    assert feeds.wanted(["shop", "other"]) == ["other"]
    box.connection.execute(b"UPDATE outbox_feeds SET failures = 40, failed_at = now() - interval '1 hour'")
    box.connection.execute(b"UPDATE outbox_feeds SET looked_at = failed_at, waiting = 3")
    wait_over(box)
    run(feeds, Failing(app.source, 1, SourceTrouble(name="shop", url="", reason="gone"), after=False), storage)
    [state] = feeds.states()
    assert all(3600 <= (age or 0) < 3700 for age in (state.failing, state.looked))
    assert (20 < (state.not_before or 0) <= 30, state.waiting) == (True, 3)
    wait_over(box)
    assert run(feeds, app.source, storage) == Bridged()
    [state] = feeds.states()
    assert (state.failures, state.error, state.failing, state.waiting, state.age) == (0, None, None, 0, 0)
    assert app.left() == 0
    assert len(ids(box)) == 1


def test_a_stalled_bridge_copies_nothing(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    written = app.write(2)
    stalled = str(uuid4())
    assert feeds.take("shop", stalled) == []
    assert feeds.take("shop", str(uuid4())) is None
    wait_over(box)
    assert feeds.copy("shop", stalled, []) == set()  # its lease begins anew
    assert feeds.take("shop", str(uuid4())) is None
    assert feeds.wanted(["shop"]) == []
    looked = app.source.look(10)

    def be_overtaken() -> bool:
        wait_over(box)
        return feeds.take("shop", str(uuid4())) is None

    wait_over(box)
    assert bridge(feeds, app.source, storage.settings, stop=be_overtaken) == Bridged()
    assert (app.left(), ids(box), feeds.states()[0].holder is None) == (2, [], False)
    wait_over(box)
    assert run(feeds, app.source, storage).copied == 2
    rows = [Copy(row.number, row.id, [{"id": row.id, "event_type": "a", "destination": "orders"}]) for row in looked]
    assert feeds.copy("shop", stalled, rows) is None
    feeds.deleted("shop", stalled)
    feeds.end("shop", stalled)
    assert ids(box) == written


def test_a_source_restored_to_an_earlier_state_brings_nothing_twice(
    box: Box, feeds: Feeds, app: App, storage: Store, tmp_path: Path
) -> None:
    """It also gives numbers out again, for other rows."""
    first = app.write(3)
    app.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = shutil.copy(app.path, tmp_path / "backup.db")
    lost = app.write(2)
    assert run(feeds, app.source, storage).copied == 5
    clone = open_source("clone", f"sqlite:///{shutil.copy(backup, tmp_path / 'clone.db')}")
    assert run(feeds, clone, storage).copied == 3  # another feed, with the same numbers and ids
    restored = App(Path(backup))
    second = restored.write(4)
    assert run(feeds, restored.source, storage).copied == 4
    assert ids(box) == first + lost + first + second
    assert restored.left() == 0
    restored.close()


def test_what_was_copied_is_forgotten_only_once_it_is_deleted(box: Box, feeds: Feeds, app: App, storage: Store) -> None:
    app.write(1)
    with pytest.raises(Dying):
        run(feeds, Failing(app.source, 2, Dying(), after=False), storage)
    feeds.deleted("shop", str(uuid4()))  # it has no lease
    assert feeds.forget(0, 10) == 0
    wait_over(box)
    assert run(feeds, app.source, storage).copied == 0
    assert feeds.forget(0, 10) == 1


def test_a_flood_ends_a_run_in_time(feeds: Feeds, app: App, storage: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """But it copies something, however slow the source is."""
    monkeypatch.setattr("outbox_tasks.feeds.bridge.ROWS_A_COPY", 5)
    app.write(20)
    done = bridge(feeds, app.source, storage.settings, longest=0.0)
    assert (done.copied, done.more) == (5, True)
    [state] = feeds.states()
    assert state.waiting == 15
    app.write(400)
    app.source.delete([(row.number, row.id) for row in app.source.look(1000)])
    assert app.left() == 0


def test_the_task_of_a_feed_copies_it_and_goes_on_at_once(
    box: Box, app: App, settings: MakeSettings, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.write(2)
    feeds = {"shop": {"url": app.url}, "gone": {"url": "sqlite:////no/such/file.db"}, "wrong": {"url": "oracle://h"}}
    relay = make_app(settings(database_schema=box.schema, broker_url=broker_url, feeds=feeds))
    relay.finalize()
    with redis.Redis.from_url(broker_url) as client:
        client.flushdb()
    feed = relay.tasks["outbox_tasks.feed"]
    assert relay.conf.beat_schedule["outbox_tasks.feed"]["options"]["queue"] == "outbox.feed"
    assert feed.apply().get() == "woke 3 of 3"
    assert feed.apply(args=("wrong",)).get() == "not done"
    assert feed.apply(args=("gone",)).get() == "copied 0, 0 dead"
    assert sorted(woken_feeds(broker_url)) == ["gone", "shop", "wrong"]
    with monkeypatch.context() as flood:
        flood.setattr("outbox_tasks.feeds.bridge.ROWS_A_COPY", 1)
        flood.setattr("outbox_tasks.feeds.task.bridge", partial(bridge, longest=0.0))
        assert feed.apply(args=("shop",)).get() == "copied 1, 0 dead"
    assert woken_feeds(broker_url) == ["shop"]
    assert feed.apply(args=("shop",)).get() == "copied 1, 0 dead"
    assert feed.apply(args=("another",)).get() == "unknown"
    assert feed.apply().get() == "woke 2 of 2"
    relay.outbox_relay.close()
    relay.close()
    assert len(ids(box)) == 2


def relayed(store: Store, receiver: Receiver) -> Counter[Step]:
    """What became of the messages, as `outbox-tasks drain` sends them: with those of the feeds."""
    return send_all(store, dict.fromkeys(store.settings.destinations, receiver), Listener()).steps


def test_a_drain_copies_all_feeds_and_one_in_trouble_holds_up_no_other(
    box: Box, app: App, tmp_path: Path, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the query finds, too. It sends between two copies of a large one."""
    monkeypatch.setattr("outbox_tasks.feeds.bridge.ROWS_A_COPY", 1)
    monkeypatch.setattr("outbox_tasks.feeds.bridge.RUN_SECONDS", 0.0)
    other = App(tmp_path / "other.db")
    box.connection.execute("CREATE TABLE tenants (name text, url text, schema text)")
    box.connection.execute("INSERT INTO tenants VALUES ('other', %s), ('shop', 'sqlite:////not/that/one')", [other.url])
    query = f"SELECT name, url, schema FROM {box.schema}.tenants WHERE name <> ':x'"
    feeds = {"gone": {"url": "sqlite:////no/such/file.db"}, "wrong": {"url": "oracle://here"},
             "shop": {"url": app.url}, "list": query}  # fmt: skip
    written = set(app.write(2) + other.write(3))
    store = Store.connect(settings(database_schema=box.schema, feeds=feeds))
    receiver = Receiver()
    assert bridge_all(store, lambda: True) == {}
    assert relayed(store, receiver)[Step.SENT] == 5
    assert {message.id for message in receiver.got} == written
    assert [(state.name, state.copied, state.failures) for state in Feeds(store).states()] == [
        ("gone", 0, 1), ("other", 3, 0), ("shop", 2, 0)]  # fmt: skip
    listed = FeedList(store)
    read: list[Source] = []
    for moved, count in ((other.url, 0), (app.url, 1)):
        box.connection.execute("UPDATE tenants SET url = %s", [moved])
        app.write(count)
        listed._read_at = float("-inf")
        source = listed.source("other")
        assert source is not None
        assert len(source.look(9)) == count
        read.append(source)
    box.connection.execute("ALTER TABLE tenants RENAME url TO gone")
    listed._read_at = float("-inf")
    assert listed.source("other") is read[1]  # what was found counts while the query fails
    listed.close()
    assert [source._open for source in read] == [None, None]
    store.close()
    other.close()


def test_the_commands_make_copy_and_show_a_feed(box: Box, settings: MakeSettings, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    places = settings(database_schema=box.schema)
    box.connection.execute(b"INSERT INTO outbox_versions (version) VALUES (%d) ON CONFLICT DO NOTHING" % VERSION)
    env = {
        "OUTBOX_DATABASE_URL": str(places.database_url),
        "OUTBOX_DATABASE_SCHEMA": box.schema,
        "OUTBOX_DESTINATIONS": json.dumps({"orders": {"url": places.destinations["orders"].url}}),
        "OUTBOX_FEEDS": json.dumps({"new": {"url": url}, "gone": {"url": "sqlite:////no/such/file"}}),
    }

    def ran(arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(commands, ["feed", *arguments.split()], env=env)
        return done.exit_code, done.output

    assert "CREATE TABLE" in ran(f"init {url}")[1]
    app = App(tmp_path / "new.db")
    app.write(3)
    code, output = ran("run")
    assert (code, "new: copied 3, 0 dead" in output) == (1, True), output
    assert ran("run nobody") == (1, "nobody: there is no feed 'nobody' in the settings\n")
    code, output = ran("status --json")
    assert [(one["name"], one["copied"], one["failures"]) for one in json.loads(output)] == [
        ("gone", 0, 1), ("new", 3, 0)]  # fmt: skip
    assert code == 1
    assert "new: copied 3, 0 wait" in ran("status")[1]
    app.close()


def test_a_feed_has_routes_of_its_own(box: Box, app: App, settings: MakeSettings) -> None:
    destinations = {"orders": {"url": "a://b"}, "eu": {"url": "a://b"}, "all": {"url": "a://b"}}
    place = {"url": app.url, "routes": {"order.*": {"to": ["eu"], "latest": True}}}
    store = Store.connect(
        settings(
            database_schema=box.schema, destinations=destinations, feeds={"shop": place},
            routes={"order.*": ["orders"], "*": ["all"]},
        )
    )  # fmt: skip
    app.write(1, "a key")
    app.write(1, event_type="mail.sent", priority="high")
    app.write(1, destination="orders", priority="normal")
    assert run(Feeds(store), app.source, store).copied == 3
    store.close()
    assert box.rows("SELECT destination, priority, latest FROM outbox_messages ORDER BY seq") == [
        ("eu", 0, True), ("all", 1, False), ("orders", 0, False)]  # fmt: skip
