"""The HTTP side of the shop. Run it with: uvicorn main:app"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, status
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.dialects.postgresql import insert
from starlette.middleware.sessions import SessionMiddleware

import staff
from database import Base, Order, Product, RequestSession, engine
from orders import SoldOut, place_order


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        products = [{"name": "chair", "in_stock": 100}, {"name": "table", "in_stock": 3}]
        await connection.execute(insert(Product).values(products).on_conflict_do_nothing())
    yield
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)
app.add_middleware(SessionMiddleware, secret_key=os.environ.get("SECRET_KEY") or secrets.token_hex())
app.include_router(staff.router)
app.mount("/outbox", staff.page.asgi)


class NewOrder(BaseModel):
    product: str
    quantity: Annotated[int, Field(ge=1)]


class OrderRead(NewOrder):
    model_config = ConfigDict(from_attributes=True)

    id: int
    status: str


@app.post("/orders", status_code=status.HTTP_201_CREATED, response_model=OrderRead)
async def create_order(new: NewOrder, session: RequestSession) -> Order:
    try:
        # Not in the dependency: that ends after the response.
        async with session.begin():
            return await place_order(session, new.product, new.quantity)
    except SoldOut as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error


@app.get("/orders/{order_id}", response_model=OrderRead)
async def read_order(order_id: int, session: RequestSession) -> Order:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND)
    return order
