"""Which broker is the relay's, where the application has one of its own: two databases of a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.places import same_place
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.worker.install import install
from outbox_tasks.worker.start_checks import check
from tests.conftest import MakeSettings, Rows, eventually

NewApp = Callable[..., Celery]


@pytest.fixture
def theirs(own_redis: EmbeddedValkey) -> str:
    """The application's broker; the relay's is the server's first database."""
    return own_redis.url.replace("/0", "/1")


@pytest.fixture
def new_app() -> Iterator[NewApp]:
    made: list[Celery] = []

    def make(broker: str, **conf: Any) -> Celery:
        app = Celery("shop", broker=broker, set_as_current=False)
        app.conf.update(conf)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def nudges(url: str, prefix: str = "") -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.llen(prefix + CLAIM_QUEUE))


def commit(outbox: Outbox, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", {})


def test_the_nudge_goes_to_the_relay_s_beside_an_app_with_another(
    settings: MakeSettings, rows: Rows, engine: Engine, own_redis: EmbeddedValkey, theirs: str, new_app: NewApp
) -> None:
    commit(Outbox(settings(broker_url=own_redis.url), celery=new_app(theirs)), engine)
    eventually(lambda: nudges(own_redis.url))
    assert nudges(theirs) == 0


@pytest.mark.parametrize("given", [None, "the same"])
def test_where_there_is_one_the_nudge_goes_as_the_app_says(
    settings: MakeSettings, rows: Rows, engine: Engine, theirs: str, new_app: NewApp, given: str | None
) -> None:
    app = new_app(theirs, broker_transport_options={"global_keyprefix": "shop:"})
    commit(Outbox(settings(broker_url=given and theirs), celery=app), engine)
    eventually(lambda: nudges(theirs, "shop:"))


def test_an_app_that_has_the_relay_installed_must_have_its_broker(
    settings: MakeSettings, rows: Rows, own_redis: EmbeddedValkey, theirs: str, new_app: NewApp
) -> None:
    resources = install(new_app(theirs), settings(broker_url=own_redis.url))
    with pytest.raises(ConfigurationError, match=r"Setting broker_url = .* take the relay's tasks from redis://.*/1\."):
        check(resources)
    check(install(new_app(theirs), settings(broker_url=theirs)))
    check(install(new_app(theirs), settings(broker_url=None)))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://h/0", "redis://:secret@H:6379", True),
        ("redis://h/0", "redis://h/1", False),
        ("redis://h:6380", "redis://h", False),
        ("rediss://h", "redis://h/0", True),
        ("amqp://u:p@h//", "pyamqp://h:5672", True),
        ("amqp://h/shop", "amqp://h/", False),
        ("amqp://h", "redis://h", False),
        ("redis://a;redis://b", "redis://b", True),
        ("redis://[::1]:6379/0", "redis://[::1]", True),
        ("memory://", "memory://", True),
        ("amqp://h//", "amqp://h:5672/%2f", True),
        ("amqp://h/", "amqp://h", True),
        ("amqp://h/shop", "amqp://h//shop", False),
        ("amqps://h/my%2Fshop", "amqp://h/my/shop", True),
        ("sentinel://h/1", "sentinel://h:26379/1", True),
        ("redis+socket:///run/a?virtual_host=0", "redis+socket://:secret@/run/a", True),
        ("redis+socket:///run/a?virtual_host=1", "redis+socket:///run/a", False),
        ("redis+socket:///run/a", "redis+socket:///run/b", False),
    ],
)
def test_two_urls_of_one_broker_are_known_as_one(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) is same_place(other, one) is same
