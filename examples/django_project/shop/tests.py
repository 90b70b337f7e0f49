"""`python manage.py test`, or pytest with pytest-django."""

from django.test import TestCase, TransactionTestCase
from outbox_tasks.testing import OutboxProbe

from shop.models import Mail
from shop.tasks import book_order, write_confirmation


class PlaceOrder(TestCase):
    """Each test runs in a transaction that is rolled back. The probe looks into it."""

    def setUp(self) -> None:
        self.outbox = self.enterContext(OutboxProbe())

    def test_an_order_is_announced_and_booked(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks:
            order = self.client.post("/orders/", {"email": "ada@example.org", "cents": 1250}, "application/json").json()
        self.outbox.assert_published("order.placed", order_id=order["id"], cents=1250)
        self.outbox.assert_task(book_order, args=(order["id"],))
        assert callbacks == []

    def test_an_order_without_credit_is_not(self) -> None:
        answer = self.client.post("/orders/", {"email": "ada@example.org", "cents": 10_001}, "application/json")
        assert answer.status_code == 409
        self.outbox.assert_not_published()


class Deliver(TransactionTestCase):
    """Each test commits, so the relay can send. Here it is in this process, and so are the destinations."""

    def test_the_customer_gets_one_mail(self) -> None:
        with OutboxProbe() as outbox:
            self.client.post("/orders/", {"email": "ada@example.org", "cents": 1250}, "application/json")
            for message in outbox.drain():
                if message.destination == "mail":
                    write_confirmation.apply([message.json], task_id=str(message.id))
        assert Mail.objects.count() == 1
