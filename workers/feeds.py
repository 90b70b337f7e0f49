"""`celery -A workers.feeds worker -n feeds@%h`: copies messages from the databases of feeds, where a site has some.

Processes of its own, since a source that does not answer holds up the process that asks it.
"""

from outbox_tasks.settings import FEED_QUEUE
from workers import narrowed

app = narrowed("feeds", queues=[FEED_QUEUE], pool="prefork", concurrency=2)
