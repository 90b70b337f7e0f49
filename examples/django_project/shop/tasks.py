from celery import shared_task
from django.db import connection
from outbox_tasks import Inbox

from shop.models import Mail, Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@shared_task
def book_order(order_id: int) -> None:
    """Called by outbox.delay. Harmless to run twice."""
    Order.objects.filter(pk=order_id).update(booked=True)


@shared_task
@Inbox("mail").once(connection)
def write_confirmation(event: dict[str, int]) -> None:
    """Called with each event order.placed. Runs in a transaction, once for each event."""
    order = Order.objects.select_related("customer").get(pk=event["order_id"])
    Mail.objects.create(order=order, content=f"To {order.customer.email}: thank you for order {order.pk}")


@task
def rate(order_id: int, stars: int) -> dict[str, int]:
    """Called by rate.enqueue. What it returns can be read by the result's id."""
    if not 1 <= stars <= 5:
        raise ValueError(f"{stars} stars")
    return {"order": Order.objects.get(pk=order_id).pk, "stars": stars}
