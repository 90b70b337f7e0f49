"""What can't work says so in one line, at the start; what may come back is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.database.engine import engine_url
from outbox_tasks.database.schema import VERSION
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from tests.acceptance.nodes import PLAIN, Relay
from tests.conftest import Stream, eventually, make_tables, own_schema

Refusals = Callable[..., list[str]]

SOLO = ("worker", "-l", "INFO", "-P", "solo", "--without-mingle")


@pytest.fixture
def refusals(relay: Relay) -> Refusals:
    """Starts these commands side by side with these settings; returns what each says before it ends in failure."""

    def run(*commands: tuple[str, ...], **values: Any) -> list[str]:
        started = [relay.worker([*PLAIN, "-A", "outbox_tasks", *command], **values).container for command in commands]
        assert all(process.child.wait(60) not in (0, None) for process in started)
        return [process.logs() for process in started]

    return run


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "The outbox tables are not in schema '{schema}' of this database, or they were emptied."),
        (VERSION - 1, f"The outbox tables in schema '{{schema}}' are of version {VERSION - 1}, and this release needs"),
        (VERSION + 1, f"The outbox tables in schema '{{schema}}' are of version {VERSION + 1}, and this release needs"),
    ],
    ids=["missing", "older", "newer"],
)
def test_a_worker_refuses_tables_that_are_not_of_its_release(
    refusals: Refusals, engine: Engine, schema: str, version: int | None, reason: str
) -> None:
    other = f"{schema}_other"
    with engine.begin() as connection:
        if version is not None:
            upgrade(connection, other)
            connection.execute(text(f"UPDATE {other}.outbox_versions SET version = {version}"))
    try:
        for said in refusals(SOLO, ("worker", "-c", "1"), database_schema=other):
            [line] = [line for line in said.splitlines() if "outbox tables" in line]
            assert line.startswith("outbox_tasks: " + reason.format(schema=other))
            assert "Traceback" not in said
    finally:
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL client_min_messages = warning"))
            connection.execute(text(f"DROP SCHEMA IF EXISTS {other} CASCADE"))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"broker_url": None}, "Setting broker_url = None is not usable: workers and beat need it;"),
        ({"backoff_cap": 0.5}, "Setting backoff_cap = 0.5 is not usable: it must be at least backoff_base (1)"),
        (
            {"destinations": {"x": {"url": "carrier+pigeon://loft"}}},
            "has the URL scheme 'carrier+pigeon', and",
        ),
        ({"destinations": {}}, "No destination is configured, so the relay can send nothing: "),
    ],
    ids=["no broker", "contradiction", "unknown publisher", "no destination"],
)
def test_wrong_settings_end_a_worker_with_one_line(refusals: Refusals, wrong: dict[str, Any], reason: str) -> None:
    commands = [SOLO] if "destinations" in wrong else [SOLO, ("beat",)]
    for said in refusals(*commands, **wrong):
        [line] = [line for line in said.splitlines() if reason in line]
        assert line.startswith("outbox_tasks: ")
        assert "Traceback" not in said


@pytest.fixture(scope="module")
def migrated_postgres() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        engine = create_engine(engine_url(server.url))
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        yield server


@pytest.fixture
def stopped_postgres(migrated_postgres: EmbeddedPostgres) -> EmbeddedPostgres:
    """Migrated, but down; `start()` brings it up."""
    migrated_postgres.kill()
    return migrated_postgres


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_worker_that_finds_no_database_waits_for_it(
    stopped_postgres: EmbeddedPostgres, relay: Relay, tmp_path: Path, stream: Stream, pool: str
) -> None:
    values = {name: value for name, value in relay.values.items() if name != "database_schema"}
    mine = Relay(tmp_path, {**values, "database_url": stopped_postgres.url}, *relay.paths)
    try:
        worker = mine.worker([*PLAIN, "-A", "outbox_tasks", "worker", "-l", "INFO", "-P", pool, "-c", "2"])
        mine.beat()
        mine.ready()
        worker.wait_for_log("unavailable")
        stopped_postgres.start()
        engine = create_engine(engine_url(stopped_postgres.url))
        with Session(engine) as session, session.begin():
            id = Outbox(mine.settings).publish(session, "order.created", {}, to="orders")
        eventually(lambda: str(id) in stream.ids(), 60)
        engine.dispose()
        assert worker.container.status == "running"
    finally:
        mine.close()


def test_of_two_relays_that_start_on_one_broker_one_refuses_and_says_why(
    relay: Relay, engine: Engine, schema: str, tmp_path: Path, own_redis: EmbeddedValkey
) -> None:
    with own_schema(engine) as other:
        make_tables(engine, other)
        mine = Relay(tmp_path, {**relay.values, "broker_url": own_redis.url}, *relay.paths)
        try:
            both = [
                mine.worker([*PLAIN, "-A", "outbox_tasks", *SOLO, "-n", f"{name}@%h"], database_schema=name).container
                for name in (schema, other)
            ]
            eventually(lambda: "exited" in [one.status for one in both])
            [refused] = [one for one in both if one.status == "exited"]
            [works] = [one for one in both if one is not refused]
            assert refused.child.wait(60) not in (0, None)
            [line] = [line for line in refused.logs().splitlines() if line.startswith("outbox_tasks: The broker ")]
            assert f"schema {schema}, server " in line
            assert f"schema {other}, server " in line
            works.ready()
        finally:
            mine.close()
