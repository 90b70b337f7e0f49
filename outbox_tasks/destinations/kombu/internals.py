"""What the publisher uses of kombu that its documentation does not promise. Seen on kombu 5.6."""

from __future__ import annotations

import time
from typing import Any


def azure_transport(timeout: float) -> Any:
    """kombu's transport for Azure's queues. By itself it would wait for minutes, and try three times."""
    from azure.storage.queue import QueueServiceClient
    from kombu.transport import azurestoragequeues as azure
    from kombu.utils.json import dumps

    class Channel(azure.Channel):
        _queue_service: Any = None
        deadline = 0.0

        @property
        def queue_service(self) -> Any:
            if self._queue_service is None:
                limits: dict[str, Any] = {"connection_timeout": timeout, "read_timeout": timeout, "retry_total": 0}
                self._queue_service = QueueServiceClient(self._url, credential=self._credential, **limits)
            return self._queue_service

        def close(self) -> None:
            super().close()  # type: ignore[no-untyped-call]
            if self._queue_service is not None:
                self._queue_service.close()

        def _put(self, queue: str, message: Any, **options: Any) -> None:
            remaining = max(0.001, self.deadline - time.monotonic())
            target = self._ensure_queue(queue)  # type: ignore[no-untyped-call]
            target.send_message(dumps(message), connection_timeout=remaining, read_timeout=remaining)

    return type("Transport", (azure.Transport,), {"Channel": Channel})
