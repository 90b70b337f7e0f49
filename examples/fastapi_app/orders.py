"""The shop's business. Each function works in the transaction of its caller."""

from outbox_tasks import Outbox
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from database import Order, Product

outbox = Outbox()  # settings from outbox.toml and the environment


class SoldOut(Exception):
    pass


async def place_order(session: AsyncSession, product: str, quantity: int) -> Order:
    order = Order(product=product, quantity=quantity)
    session.add(order)
    await session.flush()  # the order has its id now
    # Not awaited: the message is inserted when the session commits. A rollback drops it.
    outbox.publish(
        session,
        "order.created",
        {"order_id": order.id, "product": product, "quantity": quantity},
        key=f"order:{order.id}",
    )
    await take_from_stock(session, product, quantity)
    return order


async def take_from_stock(session: AsyncSession, product: str, quantity: int) -> None:
    enough = Product.name == product, Product.in_stock >= quantity
    taken = update(Product).where(*enough).values(in_stock=Product.in_stock - quantity).returning(Product.name)
    if await session.scalar(taken) is None:
        raise SoldOut(f"there are not {quantity} of {product} left")
