"""Problems of the workers, and of what must happen now and then."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine, text

from outbox_tasks.broker.names import QUEUES
from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.operating.heartbeats import LATE_CLAIM
from outbox_tasks.operating.problems import Severity, examine, examine_worker
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.doctoring import READS, at_work, beats, found, login, roots, sql


@pytest.fixture
def site(store: Store, rows: Rows) -> Settings:
    """A relay at work: its settings."""
    at_work(rows)
    return store.settings


def test_a_relay_at_work_has_no_problem(site: Settings, rows: Rows) -> None:
    assert roots(site) == {}
    rows.insert(1000)
    rows.insert(10, key="a", attempts=3, created_at=seconds_from_now(-9999), locked_until=seconds_from_now(60))
    assert roots(site) == {}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queue_without_a_worker(site: Settings, rows: Rows, queue: str) -> None:
    beats(rows, "worker", 600, "claim@here", queues=[])
    beats(rows, "worker", 600, "publish@here", queues=[queue])
    beats(rows, "worker", 1, "rest@here", queues=[*{*QUEUES} - {queue}])
    missing = found(site, "no_workers")["no_workers"]
    assert missing.fact == f"No worker serves {queue}: publish@here was last seen 10 min ago."
    assert (missing.which, missing.since) == (queue, pytest.approx(600, abs=30))


def test_the_queues_of_one_lost_worker_are_one_problem_and_the_root_of_what_it_did(site: Settings, rows: Rows) -> None:
    """Beat shows only by the claims that it causes, so it is not blamed."""
    rows.insert(1, locked_until=seconds_from_now(-600))
    beats(rows, "worker", 48, "claim@here", queues=["outbox.claim", "outbox.maintain"])
    beats(rows, "beat", 50)
    beats(rows, "claim", 50)
    [lost] = examine(site).problems
    assert (lost.code, lost.which) == ("no_workers", "outbox.claim, outbox.maintain")
    assert {"no_claims", "stale"} <= {problem.code for problem in lost.follows}
    assert "no_beat" not in found(site)


def test_workers_that_share_a_name_are_that_and_not_missing(site: Settings, store: Store, rows: Rows) -> None:
    beats(rows, "worker", 300, "claim@here")
    beats(rows, "worker", 300, "publish@here")

    def beat(number: int) -> None:
        facts = {"queues": [QUEUES[number % 2]], "started": f"{number % 2}"}
        seen = [{"name": "celery@here", "kind": "worker", "ago": 0, "facts": facts}]
        store.ask("report/beat.sql", seen=json.dumps(seen), late=LATE_SECONDS)

    beat(0), beat(0)
    assert "same_name" not in roots(site)
    beat(1)  # as after a restart
    assert "same_name" not in roots(site)
    beat(0)
    assert roots(site) == {"same_name": "celery@here"}
    beat(0)
    assert "same_name" not in roots(site)


def test_a_supervised_task_that_its_workers_do_not_know(site: Settings, rows: Rows) -> None:
    """Their heartbeats say which."""
    beats(rows, "tasks", 1, "shop@here (tasks)", queues=["shop"], unknown=["shop.of_tomorrow"])
    beats(rows, "tasks", 99, "lost@here (tasks)", queues=["shop"], unknown=["shop.of_yesterday"])
    with_tasks = site.replace(destinations={"tasks": {"url": "celery://?queue=shop"}})
    assert roots(with_tasks) == {"task_unknown": "shop.of_tomorrow"}


def test_one_worker_by_its_name(site: Settings, rows: Rows) -> None:
    def lost(name: str, settings: Settings = site) -> list[tuple[str, str]]:
        return [(problem.code, problem.which) for problem in examine_worker(settings, name).problems]

    assert lost("publish@here") == []
    beats(rows, "worker", 600, "publish@here")
    assert lost("publish@here") == [("worker_lost", "publish@here")]
    assert lost("claim@here") == []
    [problem] = examine_worker(site, "other@here").problems
    assert problem.fact == "other@here has no heartbeat; those alive: claim@here."
    assert lost("claim@here", site.replace(database_url="postgresql://127.0.0.1:1/none")) == [("database_away", "")]
    assert lost("claim@here", site.replace(database_schema="nobody_has_made_it")) == [("schema_missing", "")]


@pytest.mark.parametrize(("kind", "code"), [("beat", "no_beat"), ("claim", "no_claims")])
def test_a_missing_beat_or_claim(site: Settings, rows: Rows, kind: str, code: str) -> None:
    beats(rows, kind, 50)
    missing = found(site, code)[code]
    assert (missing.severity, missing.since) == (Severity.ERROR, pytest.approx(50, abs=20))
    assert found(site.replace(claim_interval=60.0), code) == {}
    with rows.engine.begin() as connection:
        connection.execute(rows.tables.heartbeats.delete().where(rows.tables.heartbeats.c.kind == kind))
    assert "never" in found(site, code)[code].fact


def test_claims_that_time_out(settings: MakeSettings, rows: Rows, engine: Engine, schema: str) -> None:
    """The session with the oldest snapshot is named, also to a role that may not know since when."""
    assert found(settings(), "claims_late") == {}
    beats(rows, LATE_CLAIM, 10.0)
    with login(engine, schema, READS) as (_, url):
        with engine.connect() as connection, connection.begin():
            connection.execute(text("DECLARE report CURSOR FOR SELECT 1"))
            seen = found(settings(), "claims_late")["claims_late"]
            hidden = found(settings(database_url=url), "claims_late")["claims_late"]
        assert seen.severity is Severity.ERROR
        assert "held by the session" in seen.fact
        assert hidden.fact.endswith(f"role {engine.url.username}).")


def test_maintenance_is_due_some_hours_after_the_start(
    settings: MakeSettings, rows: Rows, engine: Engine, schema: str
) -> None:
    assert found(settings(), "no_maintenance") == {}
    sql(engine, schema)("UPDATE outbox_versions SET applied_at = now() - interval '5 hours'")
    assert found(settings(), "no_maintenance")["no_maintenance"].severity is Severity.WARNING
    beats(rows, "maintain", 3000.0)
    assert found(settings(), "no_maintenance") == {}
