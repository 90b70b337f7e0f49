"""An empty place on servers that may be somebody else's: a schema, a Redis database, and exactly our own settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.exceptions import ResponseError
from sqlalchemy.schema import DropSchema

from outbox_tasks.database.connection import migrating
from outbox_tasks.errors import BrokerUnreachable, ConfigurationError
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.settings.sources import PREFIX
from outbox_tasks.text import redacted

DATABASES = range(15, 0, -1)
"""Numbers of Redis databases to try. The first ones are the least likely to be in use."""

OURS = ("outbox", "unacked", "_kombu.", "celery")
"""Prefixes of the keys that a demo or a soak and its Celery leave in Redis."""


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
def empty_redis(url: str, who: str, name: str) -> Iterator[str]:
    """The URL of an empty database on the server at `url`, emptied again at the end.

    Celery's queues have the same names everywhere: a relay that uses the given database must not take ours.
    """
    if urlsplit(url).scheme != "redis":
        rule = f"the {who} needs a redis:// server; without OUTBOX_BROKER_URL it starts its own"
        raise ConfigurationError(setting="broker_url", value=redacted(url), rule=rule)
    marker = f"outbox_{who}"
    try:
        for candidate in (*(_with_database(url, number) for number in DATABASES), url):
            with redis.Redis.from_url(candidate, socket_timeout=5, socket_connect_timeout=5) as client:
                if _is_taken(client, marker, name):
                    break
        else:
            rule = f"the {who} needs an empty database on this server; without OUTBOX_BROKER_URL it starts its own"
            raise ConfigurationError(setting="broker_url", value=redacted(url), rule=rule)
        try:
            yield candidate
        finally:
            with redis.Redis.from_url(candidate) as client:
                for key in client.scan_iter(count=1000):
                    if key.decode(errors="replace").startswith(OURS):
                        client.unlink(key)
    except redis.RedisError as error:
        raise BrokerUnreachable(url=redacted(url), reason=error) from error


def _is_taken(client: redis.Redis, marker: str, name: str) -> bool:
    """Whether the database was empty, and is ours now."""
    try:
        if client.dbsize() or not client.set(marker, name, nx=True):
            return False
        if client.dbsize() == 1:
            return True
        client.delete(marker)
    except ResponseError:  # there is no database of this number, or we may not use it
        pass
    return False


def _with_database(url: str, number: int) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{number}"))
