"""The consumer: a plain Celery task. It does not know the outbox, and may be on another host.

Run it with: celery -A notifications worker -Q notifications -n notifications@%h
"""

import os

import psycopg
from celery import Celery

app = Celery("notifications", broker=os.environ["OUTBOX_BROKER_URL"])
app.conf.task_ignore_result = True
# A task leaves the queue when it is done, not when it begins.
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True


@app.task(bind=True)
def notify(self, order):
    """Write the notification once, also if the message comes twice: the task's id is the message id."""
    with psycopg.connect(os.environ["OUTBOX_DATABASE_URL"]) as connection:
        connection.execute(
            "INSERT INTO notifications (message_id, order_id, content) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (self.request.id, order["id"], f"{order['email']}: your order is {order['status']}"),
        )
