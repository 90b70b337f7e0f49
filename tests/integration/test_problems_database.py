"""Problems of the database server, and of what stands before it."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from sqlalchemy import Engine, make_url

from lab.proxy import Proxy
from outbox_tasks.operating.problems import Connections, Severity, Site, examine, look
from outbox_tasks.operating.problems.checks import CHECKS, DATABASE
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration import pgbouncer
from tests.integration.doctoring import READS, Sql, found, login, sql


def in_order(settings: Settings) -> list[str]:
    """What the doctor says is in order with the database."""
    return examine(settings, deep=True).in_order[DATABASE]


def codes(settings: Settings, *, deep: bool = False) -> list[str]:
    """Of the root causes."""
    return [problem.code for problem in examine(settings, deep=deep).problems]


def test_a_healthy_server_has_no_problem(settings: MakeSettings, rows: Rows) -> None:
    assert in_order(settings()) == [check.in_order for check in CHECKS if check.subject == DATABASE]


def test_an_unreachable_server_is_one_problem_and_the_rest_is_looked_at(settings: MakeSettings) -> None:
    away = settings(database_url="postgresql://me:secret@127.0.0.1:1/outbox")
    seen = examine(away, deep=True)
    [problem] = seen.everything
    assert problem.code == "database_away"
    assert "postgresql://me:***@127.0.0.1:1/outbox can't be reached" in problem.fact
    assert "secret" not in str(seen)
    assert "Tables" in seen.skipped
    assert {"Broker", "Destinations"} <= seen.in_order.keys()
    assert codes(away) == ["database_away"]


def test_no_database_is_configured(settings: MakeSettings) -> None:
    assert "database_url" in found(settings(database_url=None), "settings")["settings"].fact


def test_a_read_only_database_is_the_root_of_all_that_stands_still(settings: MakeSettings, rows: Rows) -> None:
    url = f"{settings().database_url}?options=-c%20default_transaction_read_only%3Don"
    [problem] = examine(settings(database_url=url, statement_timeout=0)).problems
    assert (problem.code, problem.severity) == ("database_read_only", Severity.ERROR)
    assert {"no_workers", "no_beat"} <= {consequence.code for consequence in problem.follows}


class TestWrite:
    """A write that is rolled back."""

    @pytest.fixture
    def full(self, rows: Rows, engine: Engine, schema: str) -> Sql:
        """The server refuses each write of a heartbeat, as with a full disk."""
        run = sql(engine, schema)
        run(
            "CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$",
            "CREATE TRIGGER disk_full BEFORE INSERT ON outbox_heartbeats FOR EACH ROW EXECUTE FUNCTION disk_full()",
        )
        return run

    def test_that_is_refused_stands_above_all_that_stands_still(
        self, settings: MakeSettings, rows: Rows, full: Sql
    ) -> None:
        rows.insert(1, locked_until=seconds_from_now(-600))
        [problem, *_] = seen = examine(settings()).problems
        assert (problem.code, problem.severity) == ("database_refuses_writes", Severity.ERROR)
        assert "No space left on device" in problem.fact
        assert {"no_workers", "no_beat", "no_claims", "stale"} <= {each.code for each in problem.follows}
        assert len(seen) == 1
        full("DROP TRIGGER disk_full ON outbox_heartbeats")
        assert "database_refuses_writes" not in found(settings())

    @pytest.mark.parametrize("refused", [False, True])
    def test_leaves_no_row_behind_and_a_connection_that_can_be_used(
        self, settings: MakeSettings, rows: Rows, request: pytest.FixtureRequest, refused: bool
    ) -> None:
        if refused:
            request.getfixturevalue("full")
        with closing(Connections(settings())) as connections:
            for _ in range(2):
                problems = look(Site(connections), only=["database_refuses_writes"]).problems
                assert [problem.code for problem in problems] == ["database_refuses_writes"] * refused
                limit = connections.store.query("SELECT current_setting('statement_timeout')")
                assert limit == [("3s",)]
        with rows.engine.connect() as connection:
            assert not connection.execute(rows.tables.heartbeats.select()).all()

    def test_is_not_missed_by_a_role_that_may_only_read(
        self, settings: MakeSettings, rows: Rows, engine: Engine, schema: str
    ) -> None:
        with login(engine, schema, READS) as (_, url):
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
class TestPgBouncer:
    def test_that_refuses_start_up_options(self, settings: MakeSettings, rows: Rows) -> None:
        with pgbouncer.pooled(settings().database_url or "") as url:
            [problem] = examine(settings(database_url=url)).problems
        assert problem.code == "pooler_refuses_options"
        assert "OUTBOX_STATEMENT_TIMEOUT=0" in problem.remedy

    def test_that_drops_them(self, settings: MakeSettings, rows: Rows) -> None:
        with pgbouncer.pooled(settings().database_url or "", ignore_startup_parameters="options") as url:
            lost = found(settings(database_url=url), "session_settings")["session_settings"]
        assert "enable_seqscan" in lost.fact
        assert "statement_timeout" in lost.fact


def test_a_slow_database_is_reported_within_seconds(settings: MakeSettings, rows: Rows) -> None:
    url = make_url(settings().database_url or "")
    with Proxy(url.port or 0) as proxy:
        far = url.set(port=proxy.port).render_as_string(hide_password=False)
        slow = settings(database_url=far, broker_url=None)
        assert "database_slow" not in found(slow)
        proxy.delay = 0.15  # each way
        began = time.monotonic()
        [problem] = [each for each in examine(slow).problems if each.code == "database_slow"]
        assert time.monotonic() - began < 10
        assert "a round trip takes 0." in problem.fact
        assert problem.follows
