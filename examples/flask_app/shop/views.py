from flask import Blueprint, abort, request
from flask.typing import ResponseReturnValue
from sqlalchemy import select

from shop.extensions import db, outbox
from shop.models import Order, Receipt, Refusal
from shop.tasks import note_refusal, send_receipt

CREDIT = 100_000

shop = Blueprint("shop", __name__)


@shop.post("/orders")
def create_order() -> ResponseReturnValue:
    new = request.get_json()
    order = Order(customer=new["customer"], cents=new["cents"])
    db.session.add(order)
    db.session.flush()
    send_receipt.delay(order.id)  # as before, but now it is sent after the commit, or not at all
    if order.cents > CREDIT:
        with outbox.direct():
            note_refusal.delay(order.customer)  # sent at once, although the order is rolled back
        abort(409, "over the credit")
    db.session.commit()
    return {"id": order.id}, 201


@shop.get("/orders/<int:order_id>")
def read_order(order_id: int) -> ResponseReturnValue:
    order = db.get_or_404(Order, order_id)
    receipt = db.session.get(Receipt, order_id)
    return {"customer": order.customer, "cents": order.cents, "receipt": receipt and receipt.content}


@shop.get("/refusals")
def read_refusals() -> ResponseReturnValue:
    return {"customers": list(db.session.scalars(select(Refusal.customer)))}
