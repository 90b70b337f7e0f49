"""What the publisher uses of kombu that its documentation does not promise. Seen on kombu 5.7."""

from __future__ import annotations

import importlib
import time
from typing import Any

from kombu.utils.json import dumps

from outbox_tasks.errors import PublisherNotInstalled
from outbox_tasks.settings.destination import Destination


def azure_transport(destination: Destination, timeout: float) -> Any:
    """kombu's transport for Azure, which by itself would wait for minutes and try three times."""
    try:
        azure = importlib.import_module("kombu.transport.azurestoragequeues")
        client = importlib.import_module("azure.storage.queue").QueueServiceClient
    except ModuleNotFoundError as error:
        extra = destination.scheme
        raise PublisherNotInstalled(destination=destination.name, missing=error.name, extra=extra) from error

    class Channel(azure.Channel):  # type: ignore[misc,name-defined]
        _queue_service: Any = None
        deadline = 0.0

        @property
        def queue_service(self) -> Any:
            if self._queue_service is None:
                limits = {"connection_timeout": timeout, "read_timeout": timeout, "retry_total": 0}
                self._queue_service = client(account_url=self._url, credential=self._credential, **limits)
            return self._queue_service

        def _put(self, queue: str, message: Any, **options: Any) -> None:
            remaining = max(0.001, self.deadline - time.monotonic())
            self._ensure_queue(queue).send_message(dumps(message), connection_timeout=remaining, read_timeout=remaining)

    return type("Transport", (azure.Transport,), {"Channel": Channel})
