"""The settings of operation: what is kept for how long, who is told of what, and where it can be looked at."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from outbox_tasks.settings.destination import Port, Span, SpanOrZero, StorageUrl, Url

DAY = 86_400.0


class Upkeep(BaseModel):
    """A part of `Settings`. Times are in seconds."""

    inbox_retention: Span = 7 * DAY
    """How long an inbox remembers a message: longer than its delivery can be repeated, redrives included."""
    archive: Literal["move", "delete"] = "move"
    """What becomes of a sent row: moved to outbox_archive, or deleted, with what it tells of repetitions."""
    archive_retention: SpanOrZero = 7 * DAY
    """How long the archive keeps what was sent or discarded: a day's partition goes when all of it is older; 0: for
    good."""
    archive_export: StorageUrl | None = Field(default=None, repr=False)
    """Where a day of the archive is written before it is dropped: a URL of fsspec, such as s3://bucket/outbox or
    file:///var/backups/outbox. None: it is dropped without."""
    archive_format: Literal["parquet", "jsonl"] = "parquet"
    """How it is written: Parquet, or JSON Lines compressed with gzip."""

    stale_after: Span = 300.0
    """Messages due for this long without being sent are stale: an alert, and not healthy."""
    alert_webhook: Url | None = Field(default=None, repr=False)
    """Where alerts are posted as JSON. None: they are logged, and sent as signals."""
    alert_repeat: Span = 3600.0
    """How long after an alert the same one is not told again."""

    monitor_port: Port | None = None
    """The port on which a worker answers /metrics, /livez and /readyz. None: it does not; 0: any that is free."""
    monitor_host: str = "127.0.0.1"
    """The address on which it listens."""
    log_format: Literal["text", "json"] = "text"
    """How the relay's own processes log: lines for people, or one JSON object a line."""
