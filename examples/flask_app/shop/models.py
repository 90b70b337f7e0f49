from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shop.extensions import db


class Order(db.Model):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class Receipt(db.Model):
    __tablename__ = "receipts"

    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)
    content: Mapped[str]


class Refusal(db.Model):
    __tablename__ = "refusals"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
