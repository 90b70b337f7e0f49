"""Passwords of the database and of the broker that change while the relay works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import kombu
import pytest
import redis
from celery import Celery
from sqlalchemy import make_url, text

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.database.connection import migrating
from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable, PasswordUnavailable
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings.password import Password
from outbox_tasks.worker.install import install
from tests.conftest import MakeSettings, MakeStore, Rows
from tests.contract.counterparts.rabbitmq import Counterpart, rabbit

__all__ = ["rabbit"]

current = ["first"]
asked: list[str] = []


def current_password() -> str:
    asked.append(current[0])
    return current[0]


LONG: dict[str, Any] = {"function": f"{__name__}:current_password", "seconds": 3600}
"""Asked once in an hour, unless the answer is refused."""


@pytest.fixture(autouse=True)
def first() -> None:
    current[0] = "first"
    asked.clear()
    Password(**LONG).forget()


class Role:
    """A role of the database whose password changes."""

    def __init__(self, rows: Rows, url: str) -> None:
        self._engine = rows.engine
        self.name = f"role_{uuid4().hex[:8]}"
        self.url = make_url(url).set(username=self.name, password=None).render_as_string(hide_password=False)
        self.run(f"CREATE ROLE {self.name} SUPERUSER LOGIN")

    def run(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(statement))

    def change(self, password: str) -> None:
        """The old password ends at once."""
        self.run(f"ALTER ROLE {self.name} PASSWORD '{password}'")


@pytest.fixture
def role(rows: Rows, postgres_url: str) -> Iterator[Role]:
    made = Role(rows, postgres_url)
    made.change("first")
    yield made
    made.run(f"DROP ROLE {made.name}")


def test_the_database_refuses_a_password_and_the_relay_asks_once_more(role: Role, new_store: MakeStore) -> None:
    store = new_store(database_url=role.url, database_password=LONG)
    identity = store.ask("deliver/identity.sql")[0].identity
    store.close()
    assert (store.ask("deliver/identity.sql")[0].identity, asked) == (identity, ["first"])

    current[0] = "second"
    role.change("second")
    store.close()  # its next connection is a new one
    assert (store.ask("deliver/identity.sql")[0].identity, asked) == (identity, ["first", "second"])

    role.change("third")
    store.close()
    with pytest.raises(DatabaseUnavailable, match="password authentication failed") as caught:
        store.ask("deliver/identity.sql")
    assert (asked, "second" in str(caught.value)) == (["first", "second", "second"], False)

    current[0] = "third"
    assert store.ask("deliver/identity.sql")
    with migrating(store.settings) as connection:
        assert connection.scalar(text("SELECT current_user")) == role.name


def test_a_server_that_is_away_did_not_refuse_the_password(new_store: MakeStore) -> None:
    store = new_store(database_url="postgresql://me@127.0.0.1:1/shop", database_password=LONG)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            store.ask("deliver/identity.sql")
    assert asked == ["first"]


def test_without_an_answer_the_database_is_away_and_the_error_names_the_source(
    role: Role, new_store: MakeStore, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    store = new_store(database_url=role.url, database_password={"file": str(file)})
    with pytest.raises(DatabaseUnavailable, match=str(file)):
        store.ask("deliver/identity.sql")
    with pytest.raises(PasswordUnavailable, match=str(file)), migrating(store.settings):
        pass
    file.write_text("first\n")
    assert store.ask("deliver/identity.sql")


class RedisBroker:
    """A user of Redis whose password changes."""

    def __init__(self, server: EmbeddedValkey) -> None:
        self._server = server
        self.url = server.url.replace("://", "://mover@")

    def change(self, password: str) -> None:
        with redis.Redis.from_url(self._server.url) as client:
            client.execute_command("ACL", "SETUSER", "mover", "on", "resetpass", f">{password}", "~*", "&*", "+@all")
            client.execute_command("CLIENT", "KILL", "USER", "mover")


class RabbitBroker:
    """A user of RabbitMQ whose password changes."""

    def __init__(self, node: Counterpart) -> None:
        self._node = node
        self.url = node.broker.replace("guest:guest@", "mover@")
        node.evaluate(
            'rabbit_auth_backend_internal:add_user(<<"mover">>, <<"first">>, <<"test">>), '
            'rabbit_auth_backend_internal:set_permissions(<<"mover">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, '
            '<<"test">>)'
        )

    def change(self, password: str) -> None:
        self._node.evaluate(f'rabbit_auth_backend_internal:change_password(<<"mover">>, <<"{password}">>, <<"test">>)')

    def end(self) -> None:
        self._node.evaluate('rabbit_auth_backend_internal:delete_user(<<"mover">>, <<"test">>)')


@pytest.fixture(params=["Redis", "RabbitMQ"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisBroker | RabbitBroker]:
    if request.param == "Redis":
        if kombu.VERSION < (5, 6):
            pytest.skip("kombu asks nobody for the password of Redis")
        made: RedisBroker | RabbitBroker = RedisBroker(request.getfixturevalue("own_redis"))
    else:
        made = RabbitBroker(request.getfixturevalue("rabbit"))
    made.change("first")
    yield made
    if isinstance(made, RabbitBroker):
        made.end()


@pytest.mark.parametrize("kind", ["the relay's app", "an application's app"])
def test_each_connection_to_the_broker_asks_for_the_password(
    server: RedisBroker | RabbitBroker, settings: MakeSettings, kind: str
) -> None:
    if kind == "the relay's app":
        made = settings(broker_url=server.url, broker_password=LONG)
        app: Celery = PinnedCelery("relay", broker=server.url, settings=made)
    else:
        made = settings(broker_url=None, broker_password=LONG)
        app = Celery("shop", broker=server.url, set_as_current=False)
        install(app, made)

    def queued() -> int:
        """As another process would, with connections of its own."""
        broker = Broker(app, made)
        try:
            return broker.queued()
        finally:
            broker.close()

    assert queued() == 0
    server.change("second")
    with pytest.raises(BrokerUnreachable) as caught:
        queued()
    assert "first" not in str(caught.value)
    with app.connection_for_read() as connection:  # a worker's: it waits until it is let in

        def refused(error: Exception, interval: float) -> None:
            current[0] = "second"

        assert connection.ensure_connection(refused, max_retries=1, interval_start=0).connected
    assert queued() == 0
    app.close()


def test_the_relay_asks_once_more_for_a_password_that_is_refused(
    server: RedisBroker | RabbitBroker, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["old"]
    monkeypatch.setattr(f"{__name__}.current_password", lambda: answers.pop() if answers else "first")
    made = settings(broker_url=server.url, broker_password=LONG)
    broker = Broker(PinnedCelery("relay", broker=server.url, settings=made), made)
    assert (broker.queued(), answers) == (0, [])
    broker.close()


def test_without_an_answer_the_broker_is_away_and_the_error_names_the_source(
    server: RedisBroker | RabbitBroker, settings: MakeSettings, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    made = settings(broker_url=server.url, broker_password={"file": str(file)})
    broker = Broker(PinnedCelery("relay", broker=server.url, settings=made), made)
    with pytest.raises(BrokerUnreachable, match=str(file)):
        broker.queued()
    file.write_text("first")
    assert broker.queued() == 0
    broker.close()
