"""A transactional outbox for Celery and SQLAlchemy: change the database and tell the world, or do neither."""

from outbox_tasks.errors import OutboxError
from outbox_tasks.model import LeasedMessage, Message, Outcome
from outbox_tasks.settings import Destination, Settings
from outbox_tasks.write import Outbox

__version__ = "0.1.0"
__all__ = ["Destination", "LeasedMessage", "Message", "Outbox", "OutboxError", "Outcome", "Settings", "__version__"]
