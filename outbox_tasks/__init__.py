"""A transactional outbox for Celery and SQLAlchemy: change the database and tell the world, or do neither."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox_tasks.errors import OutboxError
    from outbox_tasks.model import LeasedMessage, Message, Outcome
    from outbox_tasks.outbox import Outbox
    from outbox_tasks.settings import Settings
    from outbox_tasks.settings.destination import Destination
    from outbox_tasks.writing.inbox import Inbox

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

_HOMES = {
    "Destination": "settings.destination",
    "Inbox": "writing.inbox",
    "LeasedMessage": "model",
    "Message": "model",
    "Outbox": "outbox",
    "OutboxError": "errors",
    "Outcome": "model",
    "Settings": "settings",
    "app": "worker.app",  # for `celery -A outbox_tasks`
}


def __getattr__(name: str) -> Any:
    """The public names. Each is loaded at its first use, so that an import alone needs neither Celery nor the ORM."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
