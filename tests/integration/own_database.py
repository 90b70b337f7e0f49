"""A database of a test's own: names, roles and defaults there are in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from click.testing import CliRunner, Result
from sqlalchemy import Connection, Engine, create_engine, text

from outbox_tasks import Outbox, Settings
from outbox_tasks.cli import outbox as commands
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.store import Store
from tests.claims import take_batch
from tests.conftest import Rows


class Place:
    """The database, and what it takes to work in it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.role = f"Role_{uuid4().hex[:8]}"
        """There if a test has made it; dropped in the end."""

    def run(self, *statements: str) -> None:
        """Run statements as the owner, each its own transaction."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement, execution_options={"no_parameters": True})

    def ask(self, query: str) -> Any:
        """One value."""
        with self.engine.connect() as connection:
            return connection.scalar(text(query))

    def settings(self, **values: Any) -> Settings:
        """Those of a relay here."""
        places = {"orders": {"url": "a://b"}, "mails": {"url": "a://b"}}
        return Settings(**{"database_url": self.url, "destinations": places, "nudge": False, **values})

    def url_of(self, role: str) -> str:
        """How somebody else gets in, with the password `secret`."""
        return self.engine.url.set(drivername="postgresql", username=role, password="secret").render_as_string(
            hide_password=False
        )

    def command(self, *arguments: str, settings: Settings, **more: Any) -> Result:
        """Run `outbox-tasks` with these arguments and settings."""
        env = {
            "OUTBOX_DATABASE_URL": settings.database_url,
            "OUTBOX_DATABASE_SCHEMA": settings.database_schema,
            "OUTBOX_DESTINATIONS": json.dumps({name: {"url": "a://b"} for name in settings.destinations}),
        }
        return CliRunner().invoke(commands, arguments, env=env, prog_name="outbox-tasks", **more)


@contextmanager
def own_database(engine: Engine) -> Iterator[Place]:
    """Make a database, and drop it with its role."""
    name = f"outbox_test_{uuid4().hex[:12]}"
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        mine = create_engine(engine.url.set(database=name))
        place = Place(mine)
        try:
            yield place
        finally:
            mine.dispose()
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
            connection.execute(text(f'DROP ROLE IF EXISTS "{place.role}"'))


def write_in_every_way(outbox: Outbox, connection: Connection) -> list[UUID]:
    """Publish within the connection's transaction; one of the messages is taken back again."""
    id = uuid4()
    made = [
        outbox.publish(connection, "order.created", {}, to="orders"),
        outbox.publish(connection, "order.created", {}, to="orders", key="order:1"),
        outbox.publish(connection, "order.created", {}, to="orders", key="order:1", id=id),
        outbox.publish(connection, "order.created", {}, to="orders", delay=60),
    ]
    assert outbox.publish(connection, "order.created", {}, to="orders", key="order:1", id=id) == id
    assert outbox.cancel(connection, made[-1])
    return made[:-1]


def through_the_pipe(settings: Settings, rows: Rows) -> None:
    """Write, claim, begin and settle, with a dead letter; then maintain, and look at it."""
    with rows.engine.begin() as connection:
        ids = {str(id) for id in write_in_every_way(Outbox(settings), connection)}
    [dead] = rows.insert()
    store = Store.connect(settings)
    try:
        store.check_version()
        dead_ones = 0
        while (batch := take_batch(store)).messages:
            verdicts = [
                Verdict(message, Step.DEAD if message.id == dead else Step.SENT, 0.0, "http_400", "no")
                for message in batch.messages
            ]
            dead_ones += sum(verdict.step is Step.DEAD for verdict in verdicts)
            settled, _ = store.settle(batch.token, "orders", verdicts)
            assert settled == {message.seq for message in batch.messages}
        assert dead_ones == 1
        done = maintain(store)
        assert not done.failed, done.failed
    finally:
        store.close()
    assert ids <= {str(row.id) for row in rows.archived() if row.state == "sent"}
