"""`celery -A workers.publish worker -n publish1@%h`: sends singles, and drains what is more. Run as many
as the load needs.

Processes, not threads: only the prefork pool can end a send that hangs beyond its time limits.
"""

from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE
from workers import narrowed

app = narrowed("publish", queues=[PUBLISH_QUEUE, DRAIN_QUEUE], pool="prefork", concurrency=4)
