"""All passwords change again and again while the relay works, and the old ones end at once."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import make_url, text

from outbox_tasks.local.relay import claim_worker_argv, publish_worker_argv
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream
from tests.contract.counterparts.http_events import Counterpart as Webhook
from tests.contract.counterparts.kafka import Counterpart as Kafka
from tests.contract.counterparts.rabbitmq import Counterpart as RabbitMQ
from tests.contract.counterparts.rabbitmq import rabbit
from tests.fault.conftest import drained

__all__ = ["rabbit"]

SECONDS = float(os.environ.get("PASSWORD_SECONDS", "15"))
CHANGE_SECONDS = 5.0
USER = "mover"


class Passwords:
    """The passwords, each in a file, and how a server is told. A command that reads the file waits while a server is
    told: so its answer is right when it is given, and wrong perhaps a moment later."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tell: dict[str, Callable[[str], None]] = {}

    def add(self, name: str, tell: Callable[[str], None]) -> dict[str, Any]:
        """A password that a server is told by `tell`. The relay may use an answer for an hour."""
        self._tell[name] = tell
        self.change(name, "first")
        path = self._directory / name
        return {"command": f"flock -s {path} cat {path}", "seconds": 3600}

    def change(self, name: str, password: str) -> None:
        with (self._directory / name).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._tell[name](password)
            file.truncate(0)
            file.write(password)

    def change_all(self, password: str) -> None:
        for name in self._tell:
            self.change(name, password)


def of_redis(url: str) -> Callable[[str], None]:
    def tell(password: str) -> None:
        with redis.Redis.from_url(url) as client:
            client.execute_command("ACL", "SETUSER", USER, "on", "resetpass", f">{password}", "~*", "&*", "+@all")

    return tell


def of_postgres(rows: Rows) -> Callable[[str], None]:
    def tell(password: str) -> None:
        with rows.engine.begin() as connection:
            connection.execute(text(f"ALTER ROLE {USER} PASSWORD '{password}'"))

    return tell


def of_rabbitmq(node: RabbitMQ) -> Callable[[str], None]:
    what = f'rabbit_auth_backend_internal:change_password(<<"{USER}">>, <<"%s">>, <<"test">>)'
    return lambda password: node.evaluate(what % password)


def tasks_in(server: EmbeddedValkey) -> list[str]:
    with redis.Redis.from_url(server.url) as client:
        return [json.loads(task)["headers"]["id"] for task in client.lrange("shop", 0, -1)]


def user_of_rabbitmq(node: RabbitMQ) -> None:
    user = f'<<"{USER}">>'
    rights = ", ".join(['<<".*">>'] * 3)
    node.evaluate(
        f'rabbit_auth_backend_internal:add_user({user}, <<"first">>, <<"test">>), '
        f'rabbit_auth_backend_internal:set_permissions({user}, <<"/">>, {rights}, <<"test">>)'
    )


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    made = Kafka()
    made.start()
    yield made
    made.end()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    made.start()
    yield made
    made.end()


@pytest.fixture
def passwords(tmp_path: Path) -> Passwords:
    return Passwords(tmp_path)


@pytest.fixture
def role(rows: Rows) -> Iterator[None]:
    with rows.engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {USER} SUPERUSER LOGIN"))
    yield
    with rows.engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {USER}"))


@pytest.mark.usefixtures("role")
def test_nothing_is_lost_no_circuit_opens_and_no_attempt_is_spent(
    rows: Rows,
    values: dict[str, Any],
    own_redis: EmbeddedValkey,
    rabbit: RabbitMQ,
    kafka: Kafka,
    webhook: Webhook,
    passwords: Passwords,
    tmp_path: Path,
) -> None:
    database = make_url(values["database_url"]).set(username=USER, password=None).render_as_string()
    user_of_rabbitmq(rabbit)
    with EmbeddedValkey() as receiver:
        stream = Stream(receiver.url, "orders")
        address = receiver.url.partition("://")[2].partition("/")[0]
        rabbit.declare("orders")
        rabbit.place = kafka.place = webhook.place = "orders"
        broker_password = passwords.add("broker", of_redis(own_redis.url))
        destinations = {
            "stream": {
                "url": f"redis+stream://{USER}@{address}/0/orders",
                "password": passwords.add("stream", of_redis(receiver.url)),
            },
            "queue": {
                "url": rabbit.broker.replace("guest:guest@", f"{USER}@") + "?queue=orders",
                "password": passwords.add("queue", of_rabbitmq(rabbit)),
            },
            "log": {
                "url": f"{kafka.url('orders')}?sasl=OAUTHBEARER",
                "password": passwords.add("log", kafka.change_token),
            },
            "hook": {"url": webhook.locked_url("orders"), "password": passwords.add("hook", webhook.change_token)},
            "tasks": {"url": "celery://?queue=shop&task=shop.on_order"},
        }
        relay = Relay(
            tmp_path,
            {
                **values,
                "send_timeout": 10,
                "statement_timeout": 10,
                "queue_lease": 60,
                "database_url": database,
                "database_password": passwords.add("database", of_postgres(rows)),
                "broker_url": own_redis.url.replace("://", f"://{USER}@"),
                "broker_password": broker_password,
                "destinations": destinations,
            },
        )
        try:
            # New processes all the time, each with connections of its own.
            relay.worker([*publish_worker_argv(1, 2, "prefork"), "--max-tasks-per-child=20"])
            relay.worker([*claim_worker_argv("claim"), "--max-tasks-per-child=20"])
            relay.beat()
            relay.ready()
            ids = {name: list[str]() for name in destinations}
            began, changes = time.monotonic(), 0
            while (now := time.monotonic() - began) < SECONDS:
                for name in destinations:
                    ids[name] += rows.insert(2, destination=name, key="one") + rows.insert(6, destination=name)
                if now > (changes + 1) * CHANGE_SECONDS:
                    changes += 1
                    passwords.change_all(f"password{changes}")
                    with redis.Redis.from_url(own_redis.url) as client:
                        client.execute_command("CLIENT", "KILL", "USER", USER)
                time.sleep(0.3)
            drained(rows)
            received = {
                "stream": stream.ids(),
                "queue": [each.attributes["id"] for each in rabbit.received()],
                "log": [each.attributes["id"] for each in kafka.received()],
                "hook": [each.attributes["id"] for each in webhook.received()],
                "tasks": tasks_in(own_redis),
            }
            print(f"{sum(map(len, ids.values()))} messages, {changes} changes of all passwords")
            assert {name: Counter(each) for name, each in received.items()} == {
                name: Counter(each) for name, each in ids.items()
            }
            histories = Counter((row.destination, row.attempts, row.last_error_code) for row in rows.archived())
            assert {attempts for _, attempts, _ in histories} == {1}, histories
            assert not [node for node in relay.nodes if "the circuit of" in node.logs()]
        finally:
            relay.close()
            rabbit.evaluate(f'rabbit_auth_backend_internal:delete_user(<<"{USER}">>, <<"test">>)')
