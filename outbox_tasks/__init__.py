"""A transactional outbox for Celery and SQLAlchemy: change the database and tell the world, or do neither."""

from outbox_tasks.errors import OutboxError
from outbox_tasks.inbox import Inbox
from outbox_tasks.model import LeasedMessage, Message, Outcome
from outbox_tasks.outbox import Outbox
from outbox_tasks.policy import Destination
from outbox_tasks.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "Destination",
    "Inbox",
    "LeasedMessage",
    "Message",
    "Outbox",
    "OutboxError",
    "Outcome",
    "Settings",
    "__version__",
]
