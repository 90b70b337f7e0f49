import json

from django.db import connection, transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from config.celery import outbox
from shop.models import Customer, Order
from shop.tasks import book_order


class NoCredit(Exception):
    pass


@csrf_exempt  # an API without sessions
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    new = json.loads(request.body)
    try:
        with transaction.atomic():
            order = order_of(new["email"], new["cents"])
    except NoCredit:
        return JsonResponse({"error": "not enough credit"}, status=409)
    return JsonResponse({"id": order.pk}, status=201)


def order_of(email: str, cents: int) -> Order:
    """A new order. The rows, the event and the task are in the transaction of the caller."""
    customer, _ = Customer.objects.get_or_create(email=email)
    order = Order.objects.create(customer=customer, cents=cents)
    outbox.publish(connection, "order.placed", {"order_id": order.pk, "cents": cents}, key=f"order:{order.pk}")
    outbox.delay(connection, book_order, order.pk)
    if not Customer.objects.filter(pk=customer.pk, credit__gte=cents).update(credit=F("credit") - cents):
        raise NoCredit
    return order


@require_GET
def show_order(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    mails = [mail.content for mail in order.mails.all()]
    return JsonResponse({"cents": order.cents, "booked": order.booked, "mails": mails})
