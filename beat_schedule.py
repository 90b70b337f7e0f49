"""What runs when: `celery -A beat_schedule beat`.

The relay's own entries have one definition, `outbox_tasks.worker.schedule`, which `celery -A outbox_tasks beat` runs
as well. A deployment adds its own periodic tasks to `app.conf.beat_schedule` here.
"""

from outbox_tasks.worker.app import app
from workers.alive import report_alive

report_alive(app)
