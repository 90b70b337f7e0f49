"""The consumer, a Celery task like any other: it does not know of the outbox, and may be on another host.

Run it with: celery -A notifications worker -Q notifications -n notifications@%h
"""

import os

import psycopg
from celery import Celery

app = Celery("notifications", broker=os.environ["OUTBOX_BROKER_URL"])
app.conf.task_ignore_result = True
# A task is taken off the queue when it is done, not when it begins.
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True


@app.task(bind=True)
def notify(self, order):
    """Note what to tell the customer; once, however often the message comes: its id is the task's id."""
    with psycopg.connect(os.environ["OUTBOX_DATABASE_URL"]) as connection:
        connection.execute(
            "INSERT INTO notifications (message_id, order_id, content) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (self.request.id, order["id"], f"{order['email']}: your order is {order['status']}"),
        )
