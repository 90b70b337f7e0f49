"""A role that may write messages, in every way, and do nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import ProgrammingError

from outbox_tasks import Message, Outbox
from outbox_tasks.errors import WriterRights
from tests.conftest import Rows
from tests.integration.own_database import Place, own_database, write_in_every_way


@pytest.fixture(scope="module")
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        settings = made.settings(database_schema="Outbox")
        made.run(f"CREATE ROLE \"{made.role}\" LOGIN PASSWORD 'secret'")
        for _ in range(2):
            done = made.command("init", "--writer", made.role, settings=settings)
            assert done.exit_code == 0, done.output
            assert f"The role {made.role} may write messages." in done.output
        made.run(f'CREATE SCHEMA evil AUTHORIZATION "{made.role}"')
        yield made


@contextmanager
def as_role(place: Place) -> Iterator[Connection]:
    """A connection of the writer."""
    engine = create_engine(place.engine.url.set(username=place.role, password="secret"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@pytest.fixture
def outbox(place: Place) -> Outbox:
    return Outbox(place.settings(database_schema="Outbox"))


@pytest.fixture
def rows(place: Place) -> Rows:
    return Rows(place.engine, "Outbox")


def test_a_writer_can_write_in_every_way(place: Place, outbox: Outbox, rows: Rows) -> None:
    with as_role(place) as writer:
        with writer.begin():
            ids = {str(id) for id in write_in_every_way(outbox, writer)}
        with writer.begin():
            many = [Message("order.created", {}, to="orders", key=f"order:{n}", id=uuid4()) for n in range(50)]
            ids |= {str(id) for id in outbox.publish_many(writer, many)}
        for payload in ("'{}'::text", "'{}'::jsonb", r"'\x00'::bytea"):
            publish = f"""SELECT "Outbox".outbox_publish('a', {payload}, key => 'k', destination => 'orders')"""
            with writer.begin():
                ids |= {str(writer.scalar(text(publish))) for _ in range(40)}
    assert ids <= {str(row.id) for row in rows.hot()}


@pytest.mark.parametrize(
    "statement",
    [
        'SELECT id FROM "Outbox".outbox_messages',
        'SELECT payload FROM "Outbox".outbox_archive',
        'SELECT * FROM "Outbox".outbox_all',
        'INSERT INTO "Outbox".outbox_ready DEFAULT VALUES',
        'DELETE FROM "Outbox".outbox_messages',
        'UPDATE "Outbox".outbox_messages SET key = NULL',
        "SELECT setval('\"Outbox\".outbox_seq', 1)",
        'SELECT "Outbox".outbox_day_drop(0)',
        'SELECT * FROM "Outbox".outbox_audit',
    ],
)
def test_a_writer_can_do_nothing_else(place: Place, statement: str) -> None:
    with as_role(place) as writer, pytest.raises(ProgrammingError, match=r"permission denied|must be owner"):
        writer.execute(text(statement))


def test_a_writer_can_t_slip_in_functions_of_its_own(place: Place) -> None:
    """What runs with the owner's rights looks for names nowhere but where PostgreSQL itself keeps them."""
    hijack = "CREATE FUNCTION evil.length(text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$"
    publish = """"Outbox".outbox_publish('a', '{}'::text, key => 'k', destination => 'orders')"""
    with as_role(place) as writer, writer.begin():
        writer.execute(text(hijack))
        writer.execute(text("SET LOCAL search_path = evil, pg_catalog"))
        assert writer.scalar(text(f"SELECT {publish}"))


def test_whoever_may_not_write_is_told_how_to_get_the_right(place: Place, outbox: Outbox) -> None:
    place.run(f'REVOKE EXECUTE ON FUNCTION "Outbox".outbox_write_one FROM "{place.role}"')
    place.run(f'REVOKE EXECUTE ON FUNCTION "Outbox".outbox_cancel FROM "{place.role}"')
    try:
        with as_role(place) as writer:
            with pytest.raises(WriterRights, match=r"permission denied .*init --writer ROLE"), writer.begin():
                outbox.publish(writer, "order.created", {}, to="orders")
            with pytest.raises(WriterRights, match="permission denied for function outbox_cancel"), writer.begin():
                outbox.cancel(writer, uuid4())
    finally:
        place.command("init", "--writer", place.role, settings=outbox.settings)


def test_a_role_that_does_not_exist_gets_no_rights(place: Place, outbox: Outbox) -> None:
    done = place.command("init", "--writer", "nobody_of_this_name", settings=outbox.settings)
    assert done.exit_code == 1
    assert "The role 'nobody_of_this_name' was given no rights" in done.output


def test_the_functions_are_not_everybody_s(place: Place, outbox: Outbox) -> None:
    place.run(f'REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA "Outbox" FROM "{place.role}"')
    try:
        with as_role(place) as writer:
            for function in ("outbox_publish('a', '{}'::text, destination => 'orders')", "outbox_write('[]')"):
                with pytest.raises(ProgrammingError, match="permission denied"), writer.begin():
                    writer.execute(text(f'SELECT "Outbox".{function}'))
    finally:
        place.command("init", "--writer", place.role, settings=outbox.settings)
