"""The project's Celery app, and its outbox. Run it with: celery -A config worker -n shop@%h -B"""

import os
from pathlib import Path

from celery import Celery
from outbox_tasks import Outbox

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# For any working directory. This module is imported before Django's settings.
os.environ.setdefault("OUTBOX_CONFIG", str(Path(__file__).parents[1] / "outbox.toml"))

app = Celery("config")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

outbox = Outbox(celery=app, feed="shop")
outbox.install(app)  # the workers of this app run the relay too
