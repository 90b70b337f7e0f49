"""The settings of a Django project on the outbox's database, for pages that run `manage.py`."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

url = urlsplit(os.environ["OUTBOX_DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
        "PASSWORD": url.password or "", "HOST": url.hostname, "PORT": url.port,
    }
}  # fmt: skip
INSTALLED_APPS = ["outbox_tasks.django"]
OUTBOX = {"destinations": {"tasks": {"url": "celery://"}}}
CELERY_BROKER_URL = os.environ["OUTBOX_BROKER_URL"]
TASKS = {"default": {"BACKEND": "outbox_tasks.django.TasksBackend"}}
