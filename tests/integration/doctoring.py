"""What the tests of the problems share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from outbox_tasks.database.activity import FAILED, REFUSED, SENT
from outbox_tasks.operating.problems import Problem, examine
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import Rows, seconds_from_now

NOBODY = "redis://127.0.0.1:1/0"
"""Nobody listens there."""

READS = "GRANT SELECT ON ALL TABLES IN SCHEMA {schema}"

Sql = Callable[..., None]


def found(settings: Settings, *only: str) -> dict[str, Problem]:
    """The problems of these codes, or all that the doctor finds, by code; of several of one code the last."""
    return {problem.code: problem for problem in examine(settings, deep=True, only=only).everything}


def roots(settings: Settings) -> dict[str, str]:
    """The root causes that `status` and `health` show: by code, what each is about."""
    return {problem.code: problem.which for problem in examine(settings).problems}


def beats(rows: Rows, kind: str, ago: float = 0.0, name: str | None = None, **facts: object) -> None:
    """Somebody wrote so long ago that this was alive, or ran."""
    h = rows.tables.heartbeats
    values = {"name": name or kind, "kind": kind, "seen_at": seconds_from_now(-ago), "facts": facts}
    with rows.engine.begin() as connection:
        connection.execute(h.delete().where(h.c.name == values["name"]))
        connection.execute(h.insert().values(**values))


def at_work(rows: Rows) -> None:
    """A relay is at work."""
    beats(rows, "worker", 1, "claim@here", queues=["outbox.claim", "outbox.maintain"])
    beats(rows, "worker", 1, "publish@here", queues=["outbox.publish", "outbox.drain"], concurrency=4, pool="prefork")
    for kind in ("claim", "publish", "beat"):
        beats(rows, kind, 1)


def tally(store: Store, destination: str = "orders", **outcomes: int) -> None:
    """So many sends ended just now, by their outcome."""
    counted = [{"destination": destination, "outcome": each, "count": outcomes[each]} for each in outcomes]
    kinds = {"arrived": [*SENT], "failures": [*FAILED], "refusals": [*REFUSED]}
    store.ask("report/tally.sql", counted=json.dumps(counted), **kinds)


def sql(engine: Engine, schema: str) -> Sql:
    """Runs statements in the test's schema, each its own transaction."""

    def run(*statements: str) -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            try:
                for statement in (f"SET search_path = {schema}", *statements):
                    connection.exec_driver_sql(statement)
            finally:
                connection.exec_driver_sql("RESET search_path")

    return run


@contextmanager
def login(engine: Engine, schema: str, *grants: str) -> Iterator[tuple[str, str]]:
    """A role that may log in, and use the schema; and a URL with it. `grants`: what more it gets, such as
    `READS`."""
    role = f"{schema}_role"
    url = engine.url.set(drivername="postgresql", username=role, password="secret")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        for grant in (f"GRANT USAGE ON SCHEMA {schema}", *grants):
            connection.exec_driver_sql(f"{grant.format(schema=schema)} TO {role}")
    try:
        yield role, url.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
