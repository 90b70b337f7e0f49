"""What the doctor finds of the messages, and of what must run now and then."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
import redis
from sqlalchemy import Engine, func, insert, text, update

from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.operating import health, pauses, status
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.relay.claim import QUEUE_SHORT
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.web.overview import troubles
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.doctoring import NOBODY, Sql, found, sql


@pytest.fixture
def run(rows: Rows, engine: Engine, schema: str) -> Sql:
    """Runs statements over migrated tables."""
    return sql(engine, schema)


def beats(rows: Rows, kind: str, ago: float = 0.0, **facts: object) -> None:
    """Somebody wrote so long ago that this was alive, or ran."""
    h = rows.tables.heartbeats
    with rows.engine.begin() as connection:
        values = {"name": facts.pop("name", kind), "kind": kind, "seen_at": seconds_from_now(-ago), "facts": facts}
        connection.execute(insert(h).values(values))


@pytest.mark.parametrize(("kind", "code"), [("beat", "no_beat"), ("claim", "no_claims")])
def test_a_missing_beat_or_claim(settings: MakeSettings, rows: Rows, kind: str, code: str) -> None:
    never = found(settings(), code)[code]
    assert never.severity is Severity.ERROR
    assert "never" in never.fact
    beats(rows, kind, 600.0)
    beats(rows, "worker", queues=[CLAIM_QUEUE])
    assert "10 min ago" in found(settings(), code)[code].fact
    assert "10 min" not in found(settings(claim_interval=120.0), code)
    with rows.engine.begin() as connection:
        connection.execute(update(rows.tables.heartbeats).values(seen_at=func.now()))
    assert found(settings(), code) == {}


def test_claims_that_time_out(settings: MakeSettings, rows: Rows, engine: Engine, schema: str) -> None:
    """The session with the oldest snapshot is named, also to a role that may not look into it."""
    assert found(settings(), "claims_late") == {}
    beats(rows, LATE_CLAIM, 10.0)
    role = f"{schema}_role"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {role}"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"))
    url = engine.url.set(drivername="postgresql", username=role, password="secret")
    blind = settings(database_url=url.render_as_string(hide_password=False))
    try:
        with engine.connect() as connection, connection.begin():
            connection.execute(text("DECLARE report CURSOR FOR SELECT 1"))
            seen, hidden = (found(one, "claims_late")["claims_late"] for one in (settings(), blind))
        assert seen.severity is Severity.ERROR
        assert "held by the session" in seen.fact
        assert "since when is hidden" in hidden.fact
        assert f"GRANT pg_read_all_stats TO {role};" in hidden.remedy
        assert [problem.code for problem in health.examine(settings())].count("late") == 1
        with closing(Store.connect(settings())) as store:
            shown = troubles(settings(), status.read(store, status.Queues(settings()), 100))
            assert [(one.kind, one.path) for one in shown if "claims time out" in one.text] == [("bad", "/doctor")]
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}; DROP ROLE {role}"))


def test_maintenance_is_due_some_hours_after_the_start(settings: MakeSettings, rows: Rows, run: Sql) -> None:
    assert found(settings(), "no_maintenance") == {}
    run("UPDATE outbox_versions SET applied_at = now() - interval '5 hours'")
    assert found(settings(), "no_maintenance")["no_maintenance"].severity is Severity.WARNING
    beats(rows, "maintain", 3000.0)
    assert found(settings(), "no_maintenance") == {}


def test_messages_that_are_stale(settings: MakeSettings, rows: Rows) -> None:
    rows.insert(3, locked_until=seconds_from_now(-100))
    assert found(settings(), "stale") == {}
    rows.insert(1, locked_until=seconds_from_now(-400), key="order:42")
    stale = found(settings(), "stale")["stale"]
    assert stale.severity is Severity.ERROR
    assert "orders: the oldest message has been due for 7 min" in stale.fact


def test_messages_for_a_destination_that_is_not_configured_here(settings: MakeSettings, rows: Rows) -> None:
    assert found(settings(), "destination_unknown") == {}
    rows.insert(2, destination="new", locked_until=seconds_from_now(-600))
    rows.insert(1, destination="later", locked_until=seconds_from_now(600))
    seen = found(settings(), "destination_unknown", "stale")
    assert seen.keys() == {"destination_unknown"}
    assert "new: messages have been due for 10 min" in seen["destination_unknown"].fact
    assert "there is no settings file /" in seen["destination_unknown"].cause


def test_no_name_that_a_writer_chooses_is_a_command_of_ours(settings: MakeSettings, rows: Rows) -> None:
    rows.insert(destination="new]\noutbox-tasks purge", locked_until=seconds_from_now(-600))
    remedy = found(settings(), "destination_unknown")["destination_unknown"].remedy
    assert [line[:5] for line in remedy.splitlines()] == ["Add ["]


def test_dead_letters_and_the_keys_that_they_hold_up(settings: MakeSettings, rows: Rows) -> None:
    assert found(settings(), "dead_letters", "keys_blocked") == {}
    rows.insert(2, status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400")
    rows.insert(1, status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400", key="order:42")
    rows.insert(3, key="order:42")
    seen = found(settings(), "dead_letters", "keys_blocked")
    assert "orders 3" in seen["dead_letters"].fact
    assert "orders 'order:42', 3 waiting" in seen["keys_blocked"].fact
    skipping = {"orders": {"url": "a://b", "on_dead": "skip"}}
    assert found(settings(destinations=skipping), "keys_blocked") == {}


@pytest.mark.parametrize("where", ["paused", "circuit open", "unknown", "retrying"])
def test_not_all_is_sent_in_time_beside_messages_that_wait(
    settings: MakeSettings, store: Store, rows: Rows, where: str
) -> None:
    def in_order() -> bool:
        facts = [fact for part in examine(settings()).parts for fact in part.in_order]
        return any(fact.startswith("nothing has been due for longer than 5 min") for fact in facts)

    assert in_order()
    long_ago = seconds_from_now(-3000)
    ids = rows.insert(500, destination="new" if where == "unknown" else "orders", locked_until=long_ago)
    rows.change(ids, created_at=long_ago)
    if where == "paused":
        pauses.pause(store, "orders", "jo", "moving house")
        assert "500 messages wait, the oldest for 50 min" in found(settings(), "paused")["paused"].fact
    elif where == "circuit open":
        for _ in range(5):
            store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
        assert "500 messages wait, the oldest for 50 min" in found(settings(), "breaker_open")["breaker_open"].fact
    elif where == "retrying":
        rows.change(ids, attempts=3, locked_until=seconds_from_now(60))
    assert not in_order()


def test_a_destination_that_refuses_everything(settings: MakeSettings, rows: Rows) -> None:
    rows.insert(3023, status="dead", dead_at=seconds_from_now(-60), last_error_code="http_422")
    assert found(settings(), "destination_refuses") == {}
    with rows.engine.begin() as connection:
        minute = func.date_trunc("minute", func.now())
        tally = {"minute": minute, "destination": "orders", "outcome": "dead", "count": 3023}
        connection.execute(insert(rows.tables.tallies).values(**tally))
    seen = found(settings(), "destination_refuses", "dead_letters")
    assert "orders refuses everything (http_422): 3,023 sends failed" in seen["destination_refuses"].fact
    assert "3,023 dead letters wait for a person" in seen["dead_letters"].fact


def test_a_destination_that_is_paused(settings: MakeSettings, store: Store, rows: Rows) -> None:
    pauses.pause(store, "orders", "jo", "moving house")
    fresh = found(settings(), "paused")["paused"]
    assert fresh.severity is Severity.NOTE
    assert "by jo: moving house" in fresh.fact
    with rows.engine.begin() as connection:
        connection.execute(update(rows.tables.destinations).values(paused_at=seconds_from_now(-7200)))
    long_since = found(settings(), "paused")["paused"]
    assert long_since.severity is Severity.WARNING
    assert long_since.remedy == "outbox-tasks resume orders"


def test_a_destination_whose_circuit_is_open(settings: MakeSettings, store: Store) -> None:
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused by the other side")
    circuit_open = found(settings(), "breaker_open")["breaker_open"]
    assert "connection: refused by the other side" in circuit_open.fact
    store.traffic.recovered("orders")
    assert found(settings(), "breaker_open") == {}


class TestQueue:
    @pytest.fixture
    def full(self, settings: MakeSettings, broker_url: str, rows: Rows) -> Iterator[Settings]:
        """As many singles are queued as make the claim add no more."""
        with redis.Redis.from_url(broker_url) as client:
            client.lpush(PUBLISH_QUEUE, *(json.dumps({"n": n}) for n in range(QUEUE_SHORT)))
            yield settings(broker_url=broker_url)
            client.delete(PUBLISH_QUEUE)

    def tally(self, rows: Rows, count: int) -> None:
        y = rows.tables.tallies
        minute = func.date_trunc("minute", func.now())
        with rows.engine.begin() as connection:
            connection.execute(insert(y).values(minute=minute, destination="orders", outcome="sent", count=count))

    def test_of_which_nothing_is_sent(self, full: Settings) -> None:
        stuck = found(full, "queue_stuck", "queue_slow")
        assert stuck.keys() == {"queue_stuck"}
        assert f"About {QUEUE_SHORT} singles wait" in stuck["queue_stuck"].fact

    def test_that_takes_longer_than_the_leases(self, full: Settings, rows: Rows) -> None:
        self.tally(rows, QUEUE_SHORT // 2)
        slow = found(full, "queue_stuck", "queue_slow")
        assert slow.keys() == {"queue_slow"}
        assert "OUTBOX_SINGLES" in slow["queue_slow"].remedy

    def test_that_moves_on(self, full: Settings, rows: Rows) -> None:
        self.tally(rows, 10_000)
        assert found(full, "queue_stuck", "queue_slow") == {}


def test_workers_are_known_by_their_heartbeats_if_the_broker_is_away(settings: MakeSettings, rows: Rows) -> None:
    away = settings(broker_url=NOBODY)
    beats(rows, "worker", 5.0, name="all@host", queues=["outbox.claim", "outbox.drain", "outbox.maintain"])
    missing = found(away, "no_workers")["no_workers"]
    assert "the queue outbox.publish: the broker could not be asked, and no heartbeat is known" in missing.fact
    beats(rows, "worker", 300.0, name="publish@host", queues=["outbox.publish"])
    assert "the last heartbeat was 5 min ago" in found(away, "no_workers")["no_workers"].fact


def test_an_app_of_no_queue_is_no_worker(settings: MakeSettings, broker_url: str, rows: Rows) -> None:
    with PinnedCelery("mine", broker=broker_url, settings=settings()):
        assert "none answers" in found(settings(broker_url=broker_url), "no_workers")["no_workers"].fact


def test_the_clock_of_a_worker_s_host(settings: MakeSettings, rows: Rows) -> None:
    beats(rows, "worker", name="claim@a", host="a", clock=time.time())
    assert found(settings(), "clock_skew") == {}
    beats(rows, "worker", name="publish@b", host="b", clock=time.time() + 400)
    skewed = found(settings(), "clock_skew")["clock_skew"]
    assert re.search(r"b is (399|400)\.\d s ahead of it\.$", skewed.fact)
    assert skewed.severity is Severity.ERROR
