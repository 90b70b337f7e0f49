"""What the fragments of a page take for granted: an application with its tables, and the outbox's.

A page imports it in a hidden set-up: `from tests.docs.shop import *`. Its destinations are those of the page's
outbox.toml; without one, `orders` is a Redis Stream and `tasks` a Celery broker.
"""

# ruff: noqa: F401

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from celery import Celery, chain, shared_task
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox_tasks import Destination, Inbox, LeasedMessage, Message, Outbox, Outcome, Settings
from outbox_tasks.database.engine import engine_url
from outbox_tasks.migrations import upgrade

REDIS = os.environ["OUTBOX_BROKER_URL"].removesuffix("/0")

if not Path("outbox.toml").exists():
    Path("outbox.toml").write_text(f"""
[destinations.orders]
url = "{REDIS.replace("redis:", "redis+stream:")}/1/orders"
[destinations.tasks]
url = "celery://?broker={REDIS}/2"
[routes]
"order.*" = ["orders"]
""")

engine = create_engine(engine_url(os.environ["OUTBOX_DATABASE_URL"]))
SessionFactory = sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Charge(Base):
    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]


Base.metadata.create_all(engine)
with engine.begin() as _connection:
    upgrade(_connection)

app = Celery("shop", broker=f"{REDIS}/2")
app.set_default()


@app.task
def send_receipt(order: int) -> None: ...


@app.task
def remind(order: int) -> None: ...


@app.task
def charge(order: int) -> None: ...


@app.task
def ship(charged: Any = None) -> None: ...


def place_order(cart: object) -> None:
    """Code that calls tasks."""
    send_receipt.delay(42)


order, cart, message_id = Order(id=42), object(), UUID(int=42)
outbox = Outbox(celery=app)


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Returns what the condition returned."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not become true within {seconds:g} s"
        time.sleep(0.1)
    return value


def set_up_django(alias: str = "default", url: str = "", **settings: Any) -> None:
    """Django with this one database; without a URL, the outbox's."""
    import django
    from django.conf import settings as django_settings

    place = urlsplit(url or os.environ["OUTBOX_DATABASE_URL"])
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": place.path[1:], "USER": place.username,
        "PASSWORD": place.password or "", "HOST": place.hostname, "PORT": place.port,
    }  # fmt: skip
    django_settings.configure(DATABASES={"default": {}, alias: database}, **settings)
    django.setup()


def async_sessions() -> Any:
    """A maker of `AsyncSession`s on the same database."""
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    return async_sessionmaker(create_async_engine(engine.url))


class DjangoOrder:
    """An object of an application's model."""

    pk = 44

    @staticmethod
    def save(using: str = "default") -> None: ...
