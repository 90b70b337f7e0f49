"""What the doctor finds of the database server, and of what stands before it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, make_url, text

from lab.proxy import Proxy
from outbox_tasks.operating import health
from outbox_tasks.operating.problems import Problem, Severity, clocks, examine
from outbox_tasks.operating.problems.checks import DATABASE
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows
from tests.integration import pgbouncer
from tests.integration.doctoring import found


def of_the_database(settings: Settings) -> tuple[list[Problem], list[str]]:
    """What is found, and what is in order."""
    [part] = [part for part in examine(settings).parts if part.subject == DATABASE]
    return part.everything, part.in_order


def test_a_healthy_server_has_no_finding(settings: MakeSettings, rows: Rows) -> None:
    findings, in_order = of_the_database(settings())
    assert findings == []
    assert in_order[0].startswith("PostgreSQL ")
    assert "no pooler in between" in in_order


def test_an_unreachable_server_is_one_finding_and_the_rest_is_checked(settings: MakeSettings, broker_url: str) -> None:
    seen = examine(settings(database_url="postgresql://me:secret@127.0.0.1:1/outbox", broker_url=broker_url))
    away = [finding for finding in seen.everything if finding.code not in ("no_workers", "destination_away")]
    assert [finding.code for finding in away] == ["database_away"]
    assert "postgresql://me:***@127.0.0.1:1/outbox can't be reached" in away[0].fact
    assert "secret" not in str(seen)
    parts = {part.subject: part for part in seen.parts}
    assert parts["Tables"].skipped
    assert parts["Broker"].in_order
    assert parts["Destinations"].in_order


def test_no_database_is_configured(settings: MakeSettings) -> None:
    assert "database_url" in found(settings(database_url=None), "settings")["settings"].fact


def test_a_database_that_takes_no_writes(settings: MakeSettings, rows: Rows, engine: Engine) -> None:
    url = f"{settings().database_url}?options=-c%20default_transaction_read_only%3Don"
    read_only = found(settings(database_url=url, statement_timeout=0), "database_read_only")["database_read_only"]
    assert read_only.severity is Severity.ERROR


def test_missing_session_settings(settings: MakeSettings, rows: Rows, engine: Engine, schema: str) -> None:
    role = f"{schema}_role"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'"))
        connection.execute(text(f"GRANT {engine.url.username} TO {role}"))
    url = engine.url.set(drivername="postgresql", username=role, password="secret")
    bare = settings(database_url=url.render_as_string(hide_password=False), statement_timeout=0)
    try:
        lost = found(bare, "session_settings")["session_settings"]
        assert lost.severity is Severity.WARNING
        with engine.begin() as connection:
            for line in lost.remedy.splitlines():
                connection.execute(text(line))
        assert found(bare, "session_settings") == {}
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP ROLE {role}"))


@pytest.mark.parametrize("apart", [310.0, -40.0])
def test_a_clock_that_differs(
    settings: MakeSettings, rows: Rows, monkeypatch: pytest.MonkeyPatch, apart: float
) -> None:
    """This host's, which we can change, in place of the server's."""
    assert found(settings(), "clock_skew") == {}
    monkeypatch.setattr(clocks, "time", SimpleNamespace(time=lambda: time.time() - apart))
    differs = [
        finding for finding in examine(settings(), only=["clock_skew"]).everything if finding.code == "clock_skew"
    ]
    assert [finding.fact.split("'")[0] for finding in differs] == ["The database", "The broker"]
    assert ("ahead of" if apart > 0 else "behind") in differs[0].fact
    assert differs[0].severity is (Severity.ERROR if abs(apart) > 300 else Severity.WARNING)


@pgbouncer.needed
class TestPgBouncer:
    @pytest.fixture
    def bare(self, settings: MakeSettings, rows: Rows) -> Iterator[Settings]:
        """What our connections need, by the role, as docs/settings.md says."""
        return settings(statement_timeout=0)

    def test_that_refuses_start_up_options(self, settings: MakeSettings, rows: Rows) -> None:
        with pgbouncer.pooled(settings().database_url or "") as url:
            findings, _ = of_the_database(settings(database_url=url))
        assert [finding.code for finding in findings] == ["pooler_refuses_options"]
        assert "OUTBOX_STATEMENT_TIMEOUT=0" in findings[0].remedy

    def test_that_drops_them(self, settings: MakeSettings, rows: Rows) -> None:
        with pgbouncer.pooled(settings().database_url or "", ignore_startup_parameters="options") as url:
            lost = found(settings(database_url=url), "session_settings")["session_settings"]
        assert "enable_seqscan" in lost.fact
        assert "statement_timeout" in lost.fact

    def test_in_session_mode_is_in_order(self, bare: Settings) -> None:
        with pgbouncer.pooled(bare.database_url or "", pool_mode="session") as url:
            findings, in_order = of_the_database(bare.replace(database_url=url))
        assert "a pooler in session mode" in in_order
        assert [finding.code for finding in findings] == ["session_settings"]

    def test_in_transaction_mode_without_prepared_statements(self, bare: Settings) -> None:
        off = {"max_prepared_statements": 0} if pgbouncer.version() >= (1, 21) else {}
        with pgbouncer.pooled(bare.database_url or "", pool_mode="transaction", **off) as url:
            broken = found(bare.replace(database_url=url), "pooler_prepared")["pooler_prepared"]
        assert broken.severity is Severity.ERROR
        assert "max_prepared_statements" in broken.remedy

    @pytest.mark.skipif(
        pgbouncer.PROGRAM is not None and pgbouncer.version() < (1, 21), reason="this pgbouncer is older than 1.21"
    )
    def test_in_transaction_mode_with_prepared_statements(self, bare: Settings) -> None:
        on = {"pool_mode": "transaction", "max_prepared_statements": 200}
        with pgbouncer.pooled(bare.database_url or "", **on) as url:
            _, in_order = of_the_database(bare.replace(database_url=url))
        assert "a pooler in transaction mode, which keeps track of prepared statements" in in_order


def test_a_slow_database_is_reported_within_seconds(settings: MakeSettings, rows: Rows) -> None:
    url = make_url(settings().database_url or "")
    with Proxy(url.port or 0) as proxy:
        far = url.set(port=proxy.port).render_as_string(hide_password=False)
        slow = settings(database_url=far, broker_url=None)
        assert "database_slow" not in found(slow)
        proxy.delay = 0.15  # each way
        began = time.monotonic()
        [finding] = [one for one in examine(slow).everything if one.code == "database_slow"]
        assert time.monotonic() - began < 25
        assert "a round trip takes 0." in finding.fact
        began = time.monotonic()
        assert [one.code for one in health.examine(slow)] == ["slow"]
        assert time.monotonic() - began < 15
