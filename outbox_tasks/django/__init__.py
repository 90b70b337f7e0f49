"""The outbox tables as a Django app: `INSTALLED_APPS = ["outbox_tasks.django", …]`, then `manage.py migrate`.

They are made in the schema of the setting `database_schema`; none: where the connection's search_path says. There are
no models of them: write through `Outbox`, and read through the view `outbox_all`.

The page for people is `path("outbox/", include("outbox_tasks.django.page"))`: see `docs/web.md`.

`TasksBackend` is a backend for Django's own tasks: see `docs/django.md`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Django imports this package before its settings can be read. And the backend needs a package, before Django 6.
    if name != "TasksBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outbox_tasks.django.backend import TasksBackend

    return TasksBackend
