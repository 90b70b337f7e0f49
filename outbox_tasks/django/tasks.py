"""The Celery task that runs Django's tasks. Celery's `autodiscover_tasks` finds it, by the name of this module."""

from __future__ import annotations

from typing import Any

from celery import shared_task


@shared_task(bind=True, name="outbox_tasks.django.run_task", ignore_result=True)
def run_task(self: Any, path: str, args: list[Any], kwargs: dict[str, Any], **how: Any) -> Any:
    """Run the Django task of this name."""
    # Not imported above: a project may have the tables only, and no backend for tasks.
    from outbox_tasks.django.results import Call
    from outbox_tasks.django.run import run

    return run(self.request, Call.made(path, args, kwargs, **how))
