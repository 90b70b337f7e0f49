"""The outbox of a Django project."""

from __future__ import annotations

from celery.app import app_or_default

from outbox_tasks.outbox import Outbox


def outbox_of_project() -> Outbox:
    """The one that the project's Celery app has, by `install` or `supervise`; else one by the settings."""
    app = app_or_default()
    return vars(app).get("outbox_of_app") or Outbox(celery=app)
