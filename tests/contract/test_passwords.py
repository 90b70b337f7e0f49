"""A password that changes: each kind of destination asks for it again, before that counts as an outage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import redis

from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import Result
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.settings import Settings
from outbox_tasks.settings.password import Password
from tests.contract.conftest import Running
from tests.contract.counterparts import http_events, kafka, rabbitmq
from tests.contract.messages import SENT, brief, message, sent_by

current = ["none yet"]
"""What `current_password` answers."""

asked: list[str] = []


def current_password() -> str:
    """Stands in for a cloud's token service."""
    asked.append(current[0])
    return current[0]


LONG = {"function": "tests.contract.test_passwords:current_password", "seconds": 3600}
"""Asked once in an hour, unless the answer is refused."""


class Site:
    """A server whose password changes. The old one ends at once, and so do connections, but RabbitMQ's."""

    def __init__(self, running: Running | None) -> None:
        self.name = f"place-{uuid4().hex[:8]}"
        self.start(running)

    def start(self, running: Any) -> None: ...

    def end(self) -> None: ...

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def change(self, password: str) -> None: ...


class RedisSite(Site):
    scheme: ClassVar[str]

    def start(self, running: Any) -> None:
        self.server = EmbeddedValkey()
        self.server.start()

    def end(self) -> None:
        self.server.stop()

    @property
    def address(self) -> str:
        return self.server.url.partition("://")[2].partition("/")[0]

    @property
    def url(self) -> str:
        return f"{self.scheme}://mover@{self.address}/0/{self.name}"

    def change(self, password: str) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.execute_command("ACL", "SETUSER", "mover", "on", "resetpass", f">{password}", "~*", "&*", "+@all")
            client.execute_command("CLIENT", "KILL", "USER", "mover")


class RedisStream(RedisSite):
    scheme = "redis+stream"


class RedisQueue(RedisSite):
    scheme = "redis"


class CeleryOnRedis(RedisSite):
    @property
    def url(self) -> str:
        return f"celery://?queue={self.name}&broker=redis://mover@{self.address}/0"


class RabbitMQ(Site):
    def start(self, running: Any) -> None:
        self.node: Any = running(rabbitmq.Counterpart)
        self.node.evaluate(
            'rabbit_auth_backend_internal:add_user(<<"mover">>, <<"first">>, <<"test">>), '
            'rabbit_auth_backend_internal:set_permissions(<<"mover">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, '
            '<<"test">>)'
        )

    def end(self) -> None:
        self.node.evaluate('rabbit_auth_backend_internal:delete_user(<<"mover">>, <<"test">>)')

    @property
    def url(self) -> str:
        return self.node.url(self.name).replace("guest:guest@", "mover@")

    def change(self, password: str) -> None:
        self.node.evaluate(f'rabbit_auth_backend_internal:change_password(<<"mover">>, <<"{password}">>, <<"test">>)')


class CeleryOnRabbitMQ(RabbitMQ):
    @property
    def url(self) -> str:
        return f"celery://?queue={self.name}&broker={super().url.partition('?')[0]}"


class Kafka(Site):
    def start(self, running: Any) -> None:
        self.server: Any = running(kafka.Counterpart)

    @property
    def url(self) -> str:
        return f"{self.server.url(self.name)}?sasl=OAUTHBEARER"

    def change(self, password: str) -> None:
        self.server.change_token(password)


class Webhook(Site):
    def start(self, running: Any) -> None:
        self.server: Any = running(http_events.Counterpart)
        self.server.place = self.name

    @property
    def url(self) -> str:
        return str(self.server.locked_url(self.name))

    def change(self, password: str) -> None:
        self.server.change_token(password)


SITES = (RedisStream, RedisQueue, CeleryOnRedis, RabbitMQ, CeleryOnRabbitMQ, Kafka, Webhook)


@pytest.fixture(params=SITES, ids=lambda kind: kind.__name__)
def site(request: pytest.FixtureRequest, running: Running) -> Iterator[Site]:
    made: Site = request.param(running)
    made.change("first")
    current[0] = "first"
    asked.clear()
    Password(**LONG).forget()
    yield made
    made.end()


def test_a_refused_password_is_asked_for_once_more_before_it_is_an_outage(site: Site) -> None:
    settings = Settings(destinations={"orders": {"url": site.url, "password": LONG}}, broker_url="redis://nowhere")
    with closing(Publishers(settings)) as publishers:
        for number in range(3):
            assert sent_by(publishers["orders"], message(2 * number), message(2 * number + 1)) == [SENT, SENT]
        assert set(asked) == {"first"}
        times = len(asked)

        site.change("second")
        publishers["orders"].close()  # where the server has not ended its connections
        outcomes = sent_by(publishers["orders"], message(6), message(7))
        assert set(brief(outcomes)) <= {(Result.OUTAGE, "unauthorized"), (Result.BEHIND, None)}
        assert not any("first" in (outcome.error or "") for outcome in outcomes)
        assert len(asked) > times

        current[0] = "second"  # now the old answer is in the cache again
        assert sent_by(publishers["orders"], message(6), message(7)) == [SENT, SENT]
        assert asked[-1] == "second"


def test_without_an_answer_it_is_an_outage_that_names_the_source(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "password"
    orders = {"url": site.url, "password": {"file": str(file)}}
    settings = Settings(destinations={"orders": orders}, broker_url="redis://nowhere")
    with closing(Publishers(settings)) as publishers:
        [outcome] = sent_by(publishers["orders"], message())
        assert outcome.result is Result.OUTAGE
        assert str(file) in (outcome.error or "")
        file.write_text("first")
        assert sent_by(publishers["orders"], message()) == [SENT]
