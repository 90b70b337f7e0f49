"""The HTTP side of the shop. Run it with: uvicorn main:app"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, status
from outbox_tasks import Outbox
from pydantic import BaseModel, ConfigDict, Field

from database import Order, engine, make_tables, new_session

MOST = 100

outbox = Outbox(feed="shop")  # settings from outbox.toml and the environment


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await make_tables()
    yield
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)


class NewOrder(BaseModel):
    product: str
    quantity: Annotated[int, Field(ge=1)]


class OrderRead(NewOrder):
    model_config = ConfigDict(from_attributes=True)

    id: int
    status: str


@app.post("/orders", status_code=status.HTTP_201_CREATED, response_model=OrderRead)
async def create_order(new: NewOrder) -> Order:
    async with new_session.begin() as session:
        order = Order(product=new.product, quantity=new.quantity)
        session.add(order)
        await session.flush()  # the order has its id now
        # Not awaited: the row of the feed is inserted when the session commits. A rollback drops it.
        outbox.publish(session, "order.created", {"order_id": order.id}, key=f"order:{order.id}")
        if new.quantity > MOST:
            raise HTTPException(status.HTTP_409_CONFLICT, f"there are not {new.quantity} of {new.product} left")
    return order


@app.get("/orders/{order_id}", response_model=OrderRead)
async def read_order(order_id: int) -> Order:
    async with new_session() as session:
        order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND)
    return order
