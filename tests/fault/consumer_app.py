"""A consumer: a stock Celery application whose task has an effect in its own database, once, by the inbox."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from outbox_tasks.database.engine import engine_url
from outbox_tasks.writing.inbox import Inbox

SCHEMA = os.environ["OUTBOX_DATABASE_SCHEMA"]

app = Celery("billing", broker=os.environ["OUTBOX_BROKER_URL"])
app.conf.update(
    # What a killed worker held comes again: the effect is to be made, however often that takes.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    # What was not acknowledged comes again soon. By default kombu looks for it every 100 s, or not for 5 minutes
    # after a worker was killed while it did so.
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 1,
    },
    task_ignore_result=True,
)

inbox = Inbox("billing", schema=SCHEMA)
sessions = sessionmaker(create_engine(engine_url(os.environ["OUTBOX_DATABASE_URL"])))


@app.task(bind=True, name="billing.charge")
@inbox.once(sessions)
def charge(self: Any, session: Session, order: int) -> None:
    """Take the money: a row, and a moment in which to be killed. Some fail the first time they are run."""
    session.execute(text(f"INSERT INTO {SCHEMA}.charges (id, n) VALUES (:id, :n)"), {"id": self.request.id, "n": order})
    session.execute(text("SELECT pg_sleep(0.02)"))
    if order % 7 == 0 and self.request.retries == 0:
        raise self.retry(countdown=0)
