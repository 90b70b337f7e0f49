"""`celery -A workers.claim worker -n claim@%h`: looks what is due, and gives it to the publish workers.

One is enough, since claims are short and batched; a second one on another host is for when that host is lost.
Solo: the statements have their own time limits, and a pool would only add a hop to every message's way.
"""

from outbox_tasks.settings import CLAIM_QUEUE
from workers import narrowed

app = narrowed("claim", queues=[CLAIM_QUEUE], pool="solo", concurrency=1)
