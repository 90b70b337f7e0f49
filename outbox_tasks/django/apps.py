"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxTasks(AppConfig):  # type: ignore[misc]
    """Has migrations, and nothing else."""

    name = "outbox_tasks.django"
    label = "outbox_tasks"
    verbose_name = "Outbox"
