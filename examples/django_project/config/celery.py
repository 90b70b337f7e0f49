"""The project's Celery app, and its outbox. Run it with: celery -A config worker -n shop@%h -B"""

import os

from celery import Celery
from outbox_tasks import Outbox

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("config")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

outbox = Outbox()
outbox.install(app)  # the workers of this app run the relay too
