"""The shop's tasks. The outbox did not change them."""

from celery import shared_task

from shop.extensions import db
from shop.models import Order, Receipt, Refusal


@shared_task(acks_late=True)
def send_receipt(order_id: int) -> None:
    """Harmless to run twice: an order has one receipt."""
    order = db.session.get_one(Order, order_id)
    content = f"{order.customer} paid {order.cents / 100:.2f}"
    db.session.merge(Receipt(order_id=order_id, content=content))
    db.session.commit()


@shared_task
def note_refusal(customer: str) -> None:
    db.session.add(Refusal(customer=customer))
    db.session.commit()
