"""Only what differs from Django's defaults."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

SECRET_KEY = os.environ.get("SECRET_KEY", "not a secret: this is an example")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "outbox_tasks.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).parent / "templates"],  # a link to the outbox's page in the admin
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
LOGIN_URL = "admin:login"  # where the outbox's page sends people who have not signed in
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The outbox tables are in the same database.
url = urlsplit(os.environ["OUTBOX_DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.removeprefix("/"),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname or "",
        "PORT": url.port or "",
    }
}

OUTBOX = {
    "source": "/shop",
    "destinations": {
        "tasks": "celery://",  # where tasks go that were called with outbox.delay
        "mail": "celery://?task=shop.tasks.write_confirmation",  # for each event, this task is called with it
    },
    "routes": {"order.placed": ["mail"]},
}

# Django's own tasks go through the outbox too, and run on the Celery workers.
TASKS = {"default": {"BACKEND": "outbox_tasks.django.TasksBackend"}}

CELERY_BROKER_URL = os.environ["OUTBOX_BROKER_URL"]
CELERY_TASK_IGNORE_RESULT = True
# A task leaves its queue when it is done, not when it begins. (The relay's own tasks don't need this.)
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
