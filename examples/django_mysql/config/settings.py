"""Only what differs from Django's defaults."""

import os
from urllib.parse import unquote, urlsplit

from outbox_tasks import Settings

SECRET_KEY = os.environ.get("SECRET_KEY", "not a secret: this is an example")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
INSTALLED_APPS = ["shop"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The project's own database: the same that the relay's settings name for this feed.
url = urlsplit(Settings().feeds["shop"].url)
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": url.path.removeprefix("/"),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname or "",
        "PORT": url.port or "",
    }
}

CELERY_BROKER_URL = os.environ["OUTBOX_BROKER_URL"]
CELERY_TASK_IGNORE_RESULT = True
# A task leaves its queue when it is done, not when it begins. (The relay's own tasks don't need this.)
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
