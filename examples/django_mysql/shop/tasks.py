from celery import shared_task
from django.db import connection
from outbox_tasks import Inbox

from shop.models import Mail, Order


@shared_task
def book_order(order_id: int) -> None:
    """Called by outbox.delay. Harmless to run twice."""
    Order.objects.filter(pk=order_id).update(booked=True)


@shared_task
@Inbox("mail").once(connection)
def write_confirmation(event: dict[str, int]) -> None:
    """Called with each event order.placed. Runs in a transaction of MySQL, once for each event."""
    order = Order.objects.select_related("customer").get(pk=event["order_id"])
    Mail.objects.create(order=order, content=f"To {order.customer.email}: thank you for order {order.pk}")
