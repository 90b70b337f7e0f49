"""The settings of operation: retention, alerts, monitoring and logs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from outbox_tasks.settings.destination import Port, Span, SpanOrZero, StorageUrl, WebUrl

DAY_SECONDS = 86_400.0


class OperationSettings(BaseModel):
    """A part of `Settings`. Times are in seconds."""

    inbox_retention: Span = 7 * DAY_SECONDS
    """How long an inbox remembers a message. It must be longer than a delivery can be repeated, also by a redrive."""
    archive_retention: SpanOrZero = 7 * DAY_SECONDS
    """How long after its end a day of messages is kept, at least an hour. It goes as a whole, once none of them is at
    work; 0: never. The causes of their repetitions go with it."""
    archive_export: StorageUrl | None = Field(default=None, repr=False)
    """Where each day of the archive is exported as Parquet before it is dropped: a URL of fsspec, such as
    s3://bucket/outbox or file:///var/backups/outbox. None: there is no export."""

    stale_after: Span = 300.0
    """Messages due for this long without being sent are stale: a problem."""
    alert_webhook: WebUrl | None = Field(default=None, repr=False)
    """Where changes of the list of problems are posted as JSON. None: they are logged, and sent as a signal."""

    monitor_port: Port | None = None
    """The port on which a worker answers /metrics, /livez and /readyz. None: it does not; 0: any that is free."""
    monitor_host: str = "127.0.0.1"
    """The address on which a worker answers, with a `monitor_port`."""
    log_format: Literal["text", "json"] = "text"
    """How the relay's own processes log: lines for people, or one JSON object a line."""
