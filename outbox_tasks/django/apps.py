"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxTasks(AppConfig):  # type: ignore[misc]
    """Has migrations, and the permissions of the page."""

    name = "outbox_tasks.django"
    label = "outbox_tasks"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"
