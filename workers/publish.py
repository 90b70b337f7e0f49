"""`celery -A workers.publish worker -n publish1@%h`: begins, sends and settles. Run as many as the load needs.

Processes, not threads: only the prefork pool can end a send that hangs beyond its time limits.
"""

from outbox_tasks.settings import PUBLISH_QUEUE
from workers import narrowed

app = narrowed("publish", queue=PUBLISH_QUEUE, pool="prefork", concurrency=4)
