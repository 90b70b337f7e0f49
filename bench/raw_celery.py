"""Celery as it comes, with a task that does nothing: the yardstick of the bench."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("raw", broker=os.environ["OUTBOX_BROKER_URL"], set_as_current=False)


@app.task(name="raw.noop", ignore_result=True)  # type: ignore[untyped-decorator]
def noop(n: int) -> None:
    """Nothing."""
