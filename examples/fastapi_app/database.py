"""The database: the tables, an engine for the process, and a session for each request."""

import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy import CheckConstraint, ForeignKey, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# The relay's URL, with our driver.
url = make_url(os.environ["OUTBOX_DATABASE_URL"]).set(drivername="postgresql+asyncpg")
engine = create_async_engine(url)
new_session = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Product(Base):
    __tablename__ = "products"
    __table_args__ = (CheckConstraint("in_stock >= 0"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    in_stock: Mapped[int]


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str] = mapped_column(ForeignKey(Product.name))
    quantity: Mapped[int]
    status: Mapped[str] = mapped_column(default="received")


class Parcel(Base):
    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))


async def request_session() -> AsyncIterator[AsyncSession]:
    async with new_session() as session:
        yield session


RequestSession = Annotated[AsyncSession, Depends(request_session)]
