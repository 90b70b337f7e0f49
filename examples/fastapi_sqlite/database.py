"""The database: one file. Its transactions begin as writers, so that none fails half-way."""

import os
from typing import Any

from outbox_tasks.migrations import upgrade_feed
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

engine = create_async_engine(f"sqlite+aiosqlite:///{os.environ.get('SHOP_DATABASE', 'shop.db')}")
new_session = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    quantity: Mapped[int]
    status: Mapped[str] = mapped_column(default="received")


@event.listens_for(engine.sync_engine, "connect")
def connected(connection: Any, _: object) -> None:
    connection.isolation_level = None  # Python's sqlite3 begins nothing by itself
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")  # the relay's reads and our writes don't wait for each other
    cursor.execute("PRAGMA busy_timeout = 10000")  # milliseconds
    cursor.close()


@event.listens_for(engine.sync_engine, "begin")
def begins(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


async def make_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.run_sync(upgrade_feed)  # the feed's table, and the inbox's
