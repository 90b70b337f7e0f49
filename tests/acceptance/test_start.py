"""What can't work says so in one line, at the start; what may come back is waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.database.engine import engine_url
from outbox_tasks.database.schema import VERSION
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.migrations import upgrade
from tests.acceptance.nodes import PLAIN, Relay
from tests.conftest import Stream, eventually, make_tables, own_schema

Refusals = Callable[..., list[str]]

SOLO = ("worker", "-l", "INFO", "-P", "solo", "--without-mingle")


@pytest.fixture
def refusals(relay: Relay) -> Refusals:
    """Starts these commands side by side with these settings; returns what each says before it ends in failure."""

    def run(*commands: tuple[str, ...], **values: Any) -> list[str]:
        started = [relay.worker([*PLAIN, "-A", "outbox_tasks", *command], **values) for command in commands]
        assert all(process.child.wait(60) not in (0, None) for process in started)
        return [process.logs() for process in started]

    return run


def in_one_line(logs: list[str], reason: str) -> bool:
    """Whether each says why, in one line."""
    lines = [[line for line in log.splitlines() if reason in line] for log in logs]
    return all(len(each) == 1 and each[0].startswith("outbox_tasks: ") for each in lines) and "Traceback" not in str(
        logs
    )


@pytest.mark.parametrize("version", [None, VERSION + 1], ids=["missing", "newer"])
def test_a_worker_refuses_tables_that_are_not_of_its_release(
    refusals: Refusals, engine: Engine, version: int | None
) -> None:
    with own_schema(engine) as other:
        reason = f"The outbox tables are not in schema '{other}' of this database, or they were emptied."
        if version is not None:
            make_tables(engine, other)
            with engine.begin() as connection:
                connection.execute(text(f"UPDATE {other}.outbox_versions SET version = {version}"))
            reason = f"The outbox tables in schema '{other}' are of version {version}, and this release needs"
        assert in_one_line(refusals(SOLO, ("worker", "-c", "1"), database_schema=other), reason)


def test_wrong_settings_end_a_worker_with_one_line(refusals: Refusals) -> None:
    reason = "Setting broker_url = None is not usable: workers and beat need it;"
    assert in_one_line(refusals(SOLO, ("beat",), broker_url=None), reason)
    strange = {"x": {"url": "carrier+pigeon://loft"}}
    assert in_one_line(refusals(SOLO, destinations=strange), "has the URL scheme 'carrier+pigeon', and")
    assert in_one_line(refusals(SOLO, destinations={}), "No destination is configured, so the relay can send nothing: ")


def test_a_worker_that_finds_no_database_waits_for_it(relay: Relay, tmp_path: Path, stream: Stream) -> None:
    with EmbeddedPostgres() as postgres:
        engine = create_engine(engine_url(postgres.url))
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        postgres.kill()
        values = {name: value for name, value in relay.values.items() if name != "database_schema"}
        mine = Relay(tmp_path, {**values, "database_url": postgres.url}, *relay.paths)
        try:
            worker = mine.worker([*PLAIN, "-A", "outbox_tasks", "worker", "-l", "INFO", "-c", "2"])
            mine.beat()
            mine.ready()
            worker.wait_for_log("unavailable")
            postgres.start()
            with Session(engine) as session, session.begin():
                id = Outbox(mine.settings).publish(session, "order.created", {}, to="orders")
            eventually(lambda: str(id) in stream.ids(), 60)
            assert worker.alive
        finally:
            engine.dispose()
            mine.close()
