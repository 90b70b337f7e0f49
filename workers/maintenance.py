"""`celery -A workers.maintenance worker -n maintenance@%h`: the archive's partitions, other housekeeping. One will do.

It has a worker of its own because one look at a large archive must not hold up a claim.
"""

from outbox_tasks.settings import MAINTAIN_QUEUE
from workers import narrowed

app = narrowed("maintenance", queues=[MAINTAIN_QUEUE], pool="solo", concurrency=1)
