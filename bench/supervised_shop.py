"""The application of the bench `supervised`: with SHOP_SUPERVISES its workers supervise, else it is plain Celery."""

from __future__ import annotations

import os

from celery import Celery

from outbox_tasks import Outbox

app = Celery("shop", broker=os.environ["SHOP_BROKER_URL"], set_as_current=False)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
if os.environ.get("SHOP_SUPERVISES"):
    Outbox().supervise(app)


@app.task(name="shop.noop")  # type: ignore[untyped-decorator]
def noop(n: int) -> None:
    """Nothing."""
