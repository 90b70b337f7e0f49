"""The tables that a test is given after another: as new, or they are not given at all."""

from __future__ import annotations

from datetime import date

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from tests.conftest import GIVEN, Rows
from tests.schemas import Schemas, dumped, new_name

pytestmark = pytest.mark.skipif(bool(GIVEN), reason="pg_dump may not know the release of a server that was given")


@pytest.fixture(scope="module")
def schemas(engine: Engine) -> Schemas:
    return Schemas(engine)


def run(engine: Engine, script: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(script, execution_options={"no_parameters": True})


def life(schemas: Schemas, engine: Engine, script: str = "") -> str:
    """A test begins, does this and ends. Returns what pg_dump said at its beginning."""
    schema = new_name()
    schemas.make(schema)
    began = dumped(engine, schema).replace(schema, "ours")
    if script:
        run(engine, script.replace("ours", schema))
    schemas.end(schema)
    with pytest.raises(ProgrammingError, match="does not exist"):
        Rows(engine, schema).hot()
    return began


def test_rows_are_gone_and_numbers_begin_anew(schemas: Schemas, engine: Engine) -> None:
    new = life(
        schemas,
        engine,
        "SELECT ours.outbox_publish('created', '{}'::text, destination => 'orders');"
        "INSERT INTO ours.outbox_inbox (consumer, message_id) VALUES ('mailer', '1');"
        "SELECT nextval('ours.outbox_audit_seq_seq')",
    )
    [spare] = schemas.spare
    assert life(schemas, engine) == new
    assert schemas.spare != [spare]
    assert len(schemas.spare) == 1


def test_after_midnight_nobody_gets_those_of_yesterday(schemas: Schemas, engine: Engine) -> None:
    """Their first day began yesterday."""
    schemas.make(held := new_name())
    life(schemas, engine)
    [spare] = schemas.spare
    schemas._day = date(2020, 2, 29)
    life(schemas, engine)
    schemas.end(held)
    assert len(schemas.spare) == 1
    with pytest.raises(ProgrammingError, match="does not exist"):
        Rows(engine, spare).hot()


@pytest.mark.parametrize(
    "script",
    [
        "ALTER SEQUENCE ours.outbox_seq INCREMENT 2",
        "ALTER TABLE ours.outbox_messages ALTER event_type SET DEFAULT 'created'",
        "ALTER TABLE ours.outbox_audit DISABLE TRIGGER ALL",
        "ANALYZE ours.outbox_versions",
        "CREATE TABLE ours.other ()",
        "DELETE FROM ours.outbox_versions",
        "DROP INDEX ours.outbox_waiting_due",
        "DROP SCHEMA ours CASCADE",
        "DROP TABLE ours.outbox_inbox",
        "GRANT SELECT ON ours.outbox_messages TO PUBLIC",
        "GRANT USAGE ON SCHEMA ours TO PUBLIC",
        "SELECT ours.outbox_day_make(3)",
        "UPDATE ours.outbox_versions SET applied_at = now()",
        "VACUUM ours.outbox_messages",
    ],
)
def test_other_changes_are_left_to_nobody(schemas: Schemas, engine: Engine, script: str) -> None:
    life(schemas, engine, script)
    assert not schemas.spare


def test_waits_for_who_has_touched_them(schemas: Schemas, engine: Engine) -> None:
    schema = new_name()
    schemas.make(schema)
    with engine.begin() as connection:
        connection.execute(text(f"SELECT FROM {schema}.outbox_inbox"))
        with pytest.raises(OperationalError, match="lock timeout"):
            schemas.end(schema, patience="0.1s")
    schemas.end(schema)
