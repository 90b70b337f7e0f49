"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

from outbox_tasks.django.checks import check_settings, check_stored
from outbox_tasks.settings.django_project import note_databases


class OutboxTasks(AppConfig):  # type: ignore[misc]
    """Has migrations, the permissions of the page, checks, and `manage.py outbox`."""

    name = "outbox_tasks.django"
    label = "outbox_tasks"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(check_settings)
        register(check_stored, deploy=True)
        note_databases()
