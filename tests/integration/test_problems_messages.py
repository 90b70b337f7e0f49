"""Problems of the messages, of the sends to their destinations, and of feeds."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
import redis
from sqlalchemy import Engine

from outbox_tasks.feeds.store import Feeds
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating import limits
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.relay.claim import QUEUED_AT_MOST
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import PUBLISH_QUEUE, Settings
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.doctoring import at_work, beats, found, roots, sql, tally

OF_SENDS = ("paused", "breaker_open", "destination_refuses", "destination_failing", "destination_waits")


@pytest.fixture
def site(store: Store, rows: Rows) -> Settings:
    """A relay at work: its settings."""
    at_work(rows)
    return store.settings


@pytest.mark.parametrize("key", [None, "order:42"])
def test_a_message_that_is_stale(site: Settings, rows: Rows, key: str | None) -> None:
    rows.insert(1, key=key, locked_until=seconds_from_now(-400))
    rows.insert(1000)
    stale = found(site, "stale")["stale"]
    assert (stale.severity, stale.which) == (Severity.ERROR, "orders")
    assert stale.fact == "orders: the oldest message has been due for 7 min."
    rows.insert(1, key="other", status="dead", dead_at=seconds_from_now(-60))
    assert roots(site) == {"stale": "orders", "dead_letters": "orders"}  # a dead letter is no excuse


def test_messages_for_a_destination_that_is_not_configured_here(site: Settings, rows: Rows) -> None:
    rows.insert(1, destination="later", locked_until=seconds_from_now(600))
    assert roots(site) == {}
    name = "new]\noutbox-tasks purge"
    rows.insert(2, destination=name, locked_until=seconds_from_now(-600))
    [unknown] = examine(site).problems
    assert (unknown.code, unknown.which, unknown.how_many) == ("destination_unknown", name, 2)
    assert "there is no settings file /" in unknown.cause
    # No name that a writer chooses is a command of ours.
    assert [line[:5] for line in unknown.remedy.splitlines()] == ["Add ["]


def test_dead_letters_and_the_keys_that_they_hold_up(site: Settings, rows: Rows) -> None:
    rows.insert(2, status="dead", dead_at=seconds_from_now(-600), last_error_code="http_400")
    rows.insert(1, status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400", key="order:42")
    rows.insert(3, key="order:42", locked_until=seconds_from_now(-9999))
    [dead] = examine(site).problems
    assert (dead.code, dead.severity, dead.how_many) == ("dead_letters", Severity.WARNING, 3)
    assert dead.fact == "orders: 3 dead letters wait for a person, the first for 10 min (http_400)."
    assert [(each.code, each.how_many) for each in dead.follows] == [("keys_blocked", 1)]
    skipping = site.replace(destinations={"orders": {"url": "a://b", "on_dead": "skip"}})
    assert found(skipping, "keys_blocked") == {}


def test_what_waits_for_an_open_circuit_is_no_problem_of_its_own(site: Settings, store: Store, rows: Rows) -> None:
    rows.insert(500, locked_until=seconds_from_now(-3000))
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused by the other side")
    [problem] = examine(site).problems
    assert (problem.code, {each.code for each in problem.follows} <= {"stale"}) == ("breaker_open", True)
    assert "500 messages wait, the oldest for 50 min" in problem.fact
    assert "connection: refused by the other side" in problem.fact
    store.traffic.recovered("orders")
    assert roots(site) == {"stale": "orders"}


def test_a_destination_that_is_paused(site: Settings, store: Store, rows: Rows) -> None:
    limits.pause(store, "orders", "jo", "moving house")
    fresh = found(site, "paused")["paused"]
    assert fresh.severity is Severity.NOTE
    assert "by jo: moving house" in fresh.fact
    rows.insert(500, locked_until=seconds_from_now(-3000))
    with rows.engine.begin() as connection:
        connection.execute(rows.tables.destinations.update().values(paused_at=seconds_from_now(-7200)))
    [long_since] = examine(site).problems
    assert (long_since.code, long_since.severity) == ("paused", Severity.WARNING)
    assert "500 messages wait, the oldest for 50 min" in long_since.fact
    assert {each.code for each in long_since.follows} <= {"stale"}
    assert long_since.remedy == "outbox-tasks resume orders"


class TestSends:
    @pytest.fixture(autouse=True)
    def waiting(self, rows: Rows) -> None:
        """Where nothing waits, somebody has seen to it."""
        retried = rows.insert(1, attempts=3, last_error_code="http_500")
        rows.change(retried, locked_until=seconds_from_now(60))

    def test_of_which_each_is_refused(
        self, site: Settings, store: Store, rows: Rows, engine: Engine, schema: str
    ) -> None:
        """Also half an hour after the last one, and until one arrives."""
        rows.insert(12, status="dead", dead_at=seconds_from_now(-130), last_error_code="http_422")
        tally(store, outage=12)
        assert "destination_refuses" not in found(site, *OF_SENDS)
        tally(store, retry=3, later=2)
        sql(engine, schema)(
            "UPDATE outbox_tallies SET minute = minute - interval '30 min'",
            "UPDATE outbox_sends SET failed_at = failed_at - interval '30 min'",
        )
        [problem] = examine(site).problems
        assert problem.fact.startswith("orders refuses everything (http_422, http_500): 5 sends")
        assert "none ever arrived; the next try is in " in problem.fact
        assert [each.code for each in problem.follows] == ["dead_letters"]
        tally(store, sent=50, retry=5)
        assert found(site, *OF_SENDS) == {}
        tally(store, retry=5)
        assert "5 sends failed, and the last arrived " in found(site, *OF_SENDS)["destination_refuses"].fact

    def test_of_which_half_fail(self, site: Settings, store: Store) -> None:
        tally(store, sent=50, retry=2)
        assert found(site, *OF_SENDS) == {}
        tally(store, sent=1, retry=49)
        [problem] = examine(site).problems
        assert (problem.code, problem.which, problem.severity) == ("destination_failing", "orders", Severity.ERROR)
        assert problem.fact.startswith("50% of the sends to orders fail (http_500): ")

    def test_after_which_the_receiver_lets_all_wait(self, site: Settings, store: Store, rows: Rows) -> None:
        rows.change(locked_until=seconds_from_now(100), last_error_code="http_429")
        tally(store, later=1)
        assert found(site, *OF_SENDS) == {}
        rows.change(locked_until=seconds_from_now(900))
        waits = found(site, *OF_SENDS)["destination_waits"]
        assert "1 message wait (http_429): the next try is in 1" in waits.fact
        tally(store, sent=1)
        assert found(site, *OF_SENDS) == {}


def test_a_limit_that_a_person_has_set_and_that_lets_messages_wait(site: Settings, store: Store, rows: Rows) -> None:
    limits.limit(store, "orders", {"rate_limit": 2}, "anna", "black friday", 3600)
    [name, limit] = ["orders: rate_limit 2 a second, by anna until 2", found(site, "limit_set")["limit_set"]]
    assert (limit.severity, limit.fact[: len(name)], limit.which) == (Severity.NOTE, name, "orders")
    assert limit.fact.endswith(" UTC: black friday.")
    rows.insert(5, locked_until=seconds_from_now(-400))
    tally(store, sent=20)
    assert {"limit_set", "stale"} <= roots(site).keys()  # it is not the limit that they wait for
    tally(store, sent=70, retry=10)
    [problem] = examine(site).problems
    assert (problem.code, problem.severity, problem.how_many) == ("limited", Severity.WARNING, 5)
    assert problem.fact.endswith(" UTC: black friday; 5 messages wait, the oldest for 7 min.")
    assert [each.code for each in problem.follows] == ["stale"]
    limits.clear(store, "orders", "anna")
    assert found(site, "limited", "limit_set") == {}


def test_a_limit_for_which_nothing_waits_is_only_noted(site: Settings, store: Store, rows: Rows) -> None:
    limits.limit(store, "orders", {"rate_limit": 2}, "anna", "black friday")
    tally(store, sent=200)
    assert found(site, "limited", "limit_set").keys() == {"limit_set"}
    limits.clear(store, "orders", "anna")
    limits.limit(store, "orders", {"concurrency": 1}, "anna", "black friday")
    rows.insert(5)
    assert found(site, "limited", "limit_set").keys() == {"limit_set"}
    store.claims.take_slot("orders", 1)
    assert found(site, "limited", "limit_set").keys() == {"limited"}
    with rows.engine.begin() as connection:
        connection.execute(rows.tables.drains.update().values(until=seconds_from_now(-1)))
    assert found(site, "limited", "limit_set").keys() == {"limit_set"}, "the drain was killed"


def test_a_queue_of_which_nothing_or_little_is_sent(
    settings: MakeSettings, own_redis: EmbeddedValkey, rows: Rows, store: Store
) -> None:
    """As many singles are queued as make the claim add no more."""
    codes, full = ("queue_stuck", "queue_slow"), settings(broker_url=own_redis.url)
    with redis.Redis.from_url(own_redis.url) as client:
        client.lpush(PUBLISH_QUEUE, *(json.dumps({"n": n}) for n in range(QUEUED_AT_MOST)))
    stuck = found(full, *codes)
    assert stuck.keys() == {"queue_stuck"}
    assert f"About {QUEUED_AT_MOST} singles wait" in stuck["queue_stuck"].fact
    tally(store, retry=QUEUED_AT_MOST // 2)  # it takes longer than the leases
    slow = found(full, *codes)
    assert slow.keys() == {"queue_slow"}
    assert "OUTBOX_SINGLES" in slow["queue_slow"].remedy
    tally(store, sent=10_000)
    assert found(full, *codes) == {}


def test_messages_that_are_claimed_but_not_sent(site: Settings, rows: Rows, store: Store) -> None:
    """Their leases run out, and they are claimed again and again."""
    beats(rows, "publish", 300)
    assert roots(site) == {}
    rows.insert(3)
    again = {"lease": uuid4(), "locked_until": seconds_from_now(40), "last_error_code": "lease_expired"}
    rows.change(created_at=seconds_from_now(-240), **again)
    silent = found(site, "silent")["silent"]
    assert silent.fact == (
        "Messages have been due for 4 min, and nothing has been sent for 5 min, though there is publish@here to do it."
    )
    limits.pause(store, "orders", "alice", None)
    assert found(site, "silent") == {}
    limits.resume(store, "orders", "alice")
    beats(rows, "publish", 5)
    assert found(site, "silent") == {}


def test_a_feed_that_is_late(site: Settings, store: Store, rows: Rows) -> None:
    beats(rows, "worker", 1, "feed@here", queues=["outbox.feed"])
    feeds = Feeds(store)
    feeds.take("eu", token := str(uuid4()))
    feeds.end("eu", token, lag=(3, site.stale_after + 60))
    [late] = examine(site.replace(feeds={"eu": {"url": "sqlite:////no/such/file.db"}})).problems
    assert (late.code, late.which, late.how_many) == ("feed_late", "eu", 3)
    assert late.fact == "The feed eu has a row that waits for 6 min."
