"""A database of a test's own: names, roles and defaults there are in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from click.testing import CliRunner, Result
from sqlalchemy import Engine, create_engine, text

from outbox_tasks import Settings
from outbox_tasks.cli import outbox as commands


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
