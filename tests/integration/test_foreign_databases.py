"""Databases with names and defaults that are not ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.conftest import Rows
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database, through_the_pipe
from tests.integration.test_doctor_tables import OF_TABLES


@pytest.fixture(scope="module")
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        yield made


@pytest.mark.parametrize("schema", ["Outbox", "user", "outbox_", "lateral"])
def test_a_schema_may_have_any_name(place: Place, schema: str) -> None:
    settings = place.settings(database_schema=schema)
    made = place.command("init", settings=settings)
    assert made.exit_code == 0, made.output
    through_the_pipe(settings, Rows(place.engine, schema))
    shown = place.command("errors", settings=settings)
    assert shown.exit_code == 0
    assert "http_400" in shown.output
    redriven = place.command("redrive", "--all", "--yes", settings=settings)
    assert redriven.exit_code == 0, redriven.output
    assert found(settings, *OF_TABLES) == {}
    index = f'"{schema}".outbox_audit_at'
    place.run(f"DROP INDEX {index}")
    place.run(found(settings, "index_missing")["index_missing"].remedy)
    assert found(settings, "index_missing") == {}
