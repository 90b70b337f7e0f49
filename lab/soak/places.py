"""An empty place on servers that may be somebody else's: a schema, a Redis database, and exactly our own settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import redis
from sqlalchemy.schema import DropSchema

from outbox_tasks.database.connection import migrating
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.settings.sources import PREFIX
from outbox_tasks.text import redacted


@contextmanager
def only_these(variables: Mapping[str, str]) -> Iterator[None]:
    """Exactly these settings, for us and our children. Celery's own variables would override them."""
    before = {name: value for name, value in os.environ.items() if name.startswith((PREFIX, "CELERY_"))}
    for name in before:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def own_tables(settings: Settings) -> Iterator[None]:
    """The outbox tables, in a database schema of our own."""
    schema = str(settings.database_schema)
    with migrating(settings) as connection:
        upgrade(connection, schema)
    try:
        yield
    finally:
        with migrating(settings) as connection:
            connection.execute(DropSchema(schema, cascade=True, if_exists=True))


@contextmanager
def empty_redis(url: str, name: str) -> Iterator[str]:
    """A Redis database that is empty, and is emptied again at the end.

    Celery's queues have the same names everywhere: a relay that uses the database must not take ours.
    """
    rule = "the soak needs a redis:// URL with an empty database, as in redis://host/15; without one it starts its own"
    refusal = ConfigurationError(setting="broker_url", value=redacted(url), rule=rule)
    if urlsplit(url).scheme != "redis":
        raise refusal
    try:
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            if client.dbsize() or not client.set("outbox_soak", name, nx=True):
                raise refusal
            try:
                yield url
            finally:
                client.flushdb()
    except redis.RedisError as error:
        raise BrokerUnreachable(url=redacted(url), reason=error) from error
