"""Problems of the servers: the database and what stands before it, the broker, and the destinations."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from sqlalchemy import Engine, make_url

from lab.proxy import Proxy
from outbox_tasks.database.connection import Database
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import Connections, Severity, Site, examine, look
from outbox_tasks.operating.problems.checks import CHECKS, DATABASE
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, Stream, seconds_from_now
from tests.integration import pgbouncer
from tests.integration.doctoring import NOBODY, READS, found, login, sql


def test_healthy_servers_have_no_problem(settings: MakeSettings, rows: Rows, there: Settings) -> None:
    in_order = examine(settings(broker_url=there.broker_url), deep=True).in_order
    assert in_order[DATABASE] == [check.in_order for check in CHECKS if check.subject == DATABASE]
    assert in_order["Broker"][0] == "it answers"
    reached = ["each has a publisher", "the hosts that their URLs name can be reached from here"]
    assert in_order["Destinations"][:2] == reached


def test_what_is_not_configured_is_said(settings: MakeSettings) -> None:
    assert "database_url" in found(settings(database_url=None), "settings")["settings"].fact
    assert found(settings(broker_url=None), "broker_unknown")["broker_unknown"].severity is Severity.NOTE
    none = found(settings(destinations={}), "no_destinations")["no_destinations"]
    assert none.fact.startswith("No destination is configured: there is no settings file /")


def test_an_unreachable_database_is_one_problem_and_the_rest_is_looked_at(settings: MakeSettings) -> None:
    seen = examine(settings(database_url="postgresql://me:secret@127.0.0.1:1/outbox"), deep=True)
    [problem] = seen.everything
    assert problem.code == "database_away"
    assert "postgresql://me:***@127.0.0.1:1/outbox can't be reached" in problem.fact
    assert "secret" not in str(seen)
    assert "Tables" in seen.skipped
    assert {"Broker", "Destinations"} <= seen.in_order.keys()


def test_an_unreachable_broker_is_the_root_of_all_that_stands_still(settings: MakeSettings, rows: Rows) -> None:
    rows.insert(1, locked_until=seconds_from_now(-600))
    seen = examine(settings(broker_url=NOBODY.replace("//", "//:secret@")))
    [away] = seen.problems
    assert away.code == "broker_away"
    assert {"no_workers", "no_beat", "no_claims", "stale"} <= {problem.code for problem in away.follows}
    assert "secret" not in str(seen)
    assert "Broker" in seen.skipped
    assert ("Tables" in seen.in_order, "Broker" in seen.in_order) == (True, False)


def test_a_read_only_database_is_the_root_of_all_that_stands_still(settings: MakeSettings, rows: Rows) -> None:
    url = f"{settings().database_url}?options=-c%20default_transaction_read_only%3Don"
    [problem] = examine(settings(database_url=url, statement_timeout=0)).problems
    assert (problem.code, problem.severity) == ("database_read_only", Severity.ERROR)
    assert {"no_workers", "no_beat"} <= {consequence.code for consequence in problem.follows}


def test_a_write_that_is_refused_stands_above_all_that_stands_still_and_none_leaves_a_row(
    settings: MakeSettings, rows: Rows, engine: Engine, schema: str
) -> None:
    """The server refuses each write of a heartbeat, as with a full disk."""
    run = sql(engine, schema)
    run(
        "CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$",
        "CREATE TRIGGER disk_full BEFORE INSERT ON outbox_heartbeats FOR EACH ROW EXECUTE FUNCTION disk_full()",
    )
    rows.insert(1, locked_until=seconds_from_now(-600))
    with closing(Connections(settings())) as connections:
        [problem] = look(Site(connections)).problems
        assert (problem.code, problem.severity) == ("database_refuses_writes", Severity.ERROR)
        assert "No space left on device" in problem.fact
        assert {"no_workers", "no_beat", "no_claims", "stale"} <= {each.code for each in problem.follows}
        run("DROP TRIGGER disk_full ON outbox_heartbeats")
        for _ in range(2):
            assert look(Site(connections), only=["database_refuses_writes"]).problems == []
            assert connections.store.query("SELECT current_setting('statement_timeout')") == [("3s",)]
    with rows.engine.connect() as connection:
        assert not connection.execute(rows.tables.heartbeats.select()).all()
    with login(engine, schema, READS) as (_, url):  # a role that may only look
        assert found(settings(database_url=url), "database_refuses_writes", "check_failed") == {}


def test_missing_session_settings(settings: MakeSettings, rows: Rows, engine: Engine, schema: str) -> None:
    with login(engine, schema, f"GRANT {engine.url.username}") as (_, url):
        bare = settings(database_url=url, statement_timeout=0)
        lost = found(bare, "session_settings")["session_settings"]
        assert lost.severity is Severity.WARNING
        assert "statement_timeout" in lost.fact
        sql(engine, schema)(*lost.remedy.splitlines())
        assert found(bare, "session_settings") == {}


@pgbouncer.needed
def test_a_pgbouncer_that_refuses_start_up_options(settings: MakeSettings, rows: Rows) -> None:
    with pgbouncer.pooled(settings().database_url or "") as url:
        [problem] = examine(settings(database_url=url)).problems
    assert problem.code == "pooler_refuses_options"
    assert "OUTBOX_STATEMENT_TIMEOUT=0" in problem.remedy


def test_a_slow_database_is_reported_within_seconds(settings: MakeSettings, rows: Rows) -> None:
    url = make_url(settings().database_url or "")
    with Proxy(url.port or 0) as proxy:
        far = url.set(port=proxy.port).render_as_string(hide_password=False)
        slow = settings(database_url=far, broker_url=None)
        assert "database_slow" not in found(slow)
        database = Database.connect(slow)
        with closing(database):
            database.round_trip()
            proxy.silence()
            threading.Timer(0.5, proxy.resume).start()
            assert database.round_trip() < 0.5, "one that is slow by chance does not count"
        proxy.delay = 0.15  # each way
        began = time.monotonic()
        [problem] = [each for each in examine(slow).problems if each.code == "database_slow"]
        assert time.monotonic() - began < 10
        assert "a round trip takes 0." in problem.fact
        assert problem.follows


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey() as made:
        yield made


@pytest.fixture
def client(server: EmbeddedValkey) -> Iterator[redis.Redis]:
    """Puts everything back."""
    with redis.Redis.from_url(server.url) as made:
        yield made
        made.config_set("maxmemory", 0)
        made.config_set("maxmemory-policy", "noeviction")
        made.flushall()


@pytest.fixture
def there(settings: MakeSettings, server: EmbeddedValkey) -> Settings:
    return settings(broker_url=server.url)


def test_a_slow_broker(there: Settings) -> None:
    with Proxy(int(str(urlsplit(there.broker_url).port))) as proxy:
        slow = there.replace(broker_url=f"redis://{LOOPBACK}:{proxy.port}/0")
        assert found(slow, "broker_slow") == {}
        proxy.delay = 0.15  # each way
        assert "the length of a queue takes 0." in found(slow, "broker_slow")["broker_slow"].fact


def test_a_broker_that_evicts_or_is_nearly_full(
    server: EmbeddedValkey, settings: MakeSettings, client: redis.Redis
) -> None:
    """It is asked without CONFIG: managed servers forbid that."""
    client.acl_setuser(
        "managed", enabled=True, passwords=["+secret"], keys="*", channels="*", commands=["+@all", "-config"]
    )
    there = settings(broker_url=server.url.replace("//", "//managed:secret@"))

    def severity(code: str) -> Severity | None:
        seen = found(there, code, "check_failed")
        assert seen.keys() <= {code}
        return seen[code].severity if seen else None

    for policy, limit, expected in (
        ("allkeys-lru", "100mb", Severity.ERROR),
        ("volatile-lru", "100mb", Severity.WARNING),
        ("allkeys-lru", "0", Severity.NOTE),
        ("noeviction", "100mb", None),
    ):
        client.config_set("maxmemory", limit)
        client.config_set("maxmemory-policy", policy)
        assert severity("eviction") is expected
    for n in range(400):  # in large pieces, much of the memory would be the connection's for a while
        client.set(f"much {n}", "x" * 50_000)
    for share, expected in ((0.5, None), (0.88, Severity.WARNING), (0.99, Severity.ERROR)):
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
        assert severity("memory_low") is expected


def test_a_destination_out_of_reach(settings: MakeSettings, stream: Stream) -> None:
    """One server of several is enough. What names no host is not tried."""
    with socket.create_server((LOOPBACK, 0)) as server:
        some = {
            "orders": {"url": stream.url}, "gone": {"url": "nats://me:secret@127.0.0.1:1/shop"},
            "nowhere": {"url": "https://does-not-exist.invalid/hooks"},
            "events": {"url": f"kafka://{LOOPBACK}:1,{LOOPBACK}:{server.getsockname()[1]}/orders"},
            "tasks": {"url": "celery://?queue=shop"}, "aws": {"url": "sqs://eu-west-1/123456789012/queue"},
        }  # fmt: skip
        away = examine(settings(destinations=some, broker_url=None), deep=True, only=["destination_away"]).problems
    assert [(each.which, each.severity) for each in away] == [("gone", Severity.ERROR), ("nowhere", Severity.ERROR)]
    assert "gone (nats://me:***@127.0.0.1:1/shop) can't be reached" in away[0].fact
    assert "secret" not in str(away)


def test_a_password_that_can_not_be_had(settings: MakeSettings, stream: Stream, tmp_path: Path) -> None:
    file = tmp_path / "password"
    made = settings(destinations={"orders": {"url": stream.url, "password": {"file": str(file)}}})
    problem = found(made, "password_unavailable")["password_unavailable"]
    assert (problem.which, str(file) in problem.fact) == ("orders", True)
    file.write_text("secret")
    assert found(made, "password_unavailable") == {}


def test_a_destination_without_a_publisher_that_takes_its_url(settings: MakeSettings) -> None:
    stream = {"url": "redis+stream://localhost:6379/0/x"}
    urls = {
        "fax": {"url": "fax://localhost:1/"}, "orders": {"url": "redis+stream://localhost:6379/one/two"},
        "large": {**stream, "claim_check": "adl://box/large"}, "tasks": {"url": "celery://"},
    }  # fmt: skip
    seen = examine(settings(destinations=urls, broker_url=None), only=["publisher_missing", "destination_url"]).problems
    fax, orders, large = seen
    assert "'fax'" in fax.fact
    assert "destinations.orders.url" in orders.fact
    assert (large.which, large.remedy[:11]) == ("large", "pip install")
