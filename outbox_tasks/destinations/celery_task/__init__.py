"""Celery tasks."""

from outbox_tasks.destinations.celery_task.publisher import CeleryTaskPublisher

__all__ = ["CeleryTaskPublisher"]
