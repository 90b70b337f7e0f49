"""Connections to a broker: an app that uses the broker it was made with, and the options of every connection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError

from outbox_tasks.settings import Settings

PATIENCE = 3.0
"""Seconds that Redis has to answer. Of connections that died silently, each is waited for, one after another."""


def transport_options(broker_url: str, settings: Settings, *, timeout: float = PATIENCE) -> dict[str, Any]:
    """kombu's transport options for a broker. With the defaults a half-open connection hangs a worker for good."""
    # kombu would wait for two seconds before it connects again: what is refused goes back to the table instead.
    connecting = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
    if not is_redis(broker_url):
        return connecting | ({"confirm_publish": True} if broker_url.startswith(("amqp", "pyamqp")) else {})
    return connecting | {
        "visibility_timeout": settings.visibility_timeout,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, PATIENCE),
        "socket_keepalive": True,
        "health_check_interval": 3,
        # Not noted in Redis as unacknowledged: the lease brings a lost task back, long before the visibility timeout
        # would. And a Redis that is full, or hangs, refused the notes: that ended workers, or used up their prefetch.
        "ack_emulation": False,
    }


class PinnedCelery(Celery):  # type: ignore[misc]
    """An app that uses the broker it was made with.

    Others prefer CELERY_BROKER_URL, which in an application's environment names the application's broker.
    """

    def __init__(self, name: str, *, broker: str, settings: Settings, timeout: float = PATIENCE) -> None:
        super().__init__(name, broker=broker, set_as_current=False)
        self.pinned_broker = broker
        given = settings.broker_transport_options if broker == settings.broker_url else {}
        self.conf.update(
            broker_url=broker,
            # Short socket timeouts and health checks: a half-open connection would hang a worker for good, silently.
            broker_transport_options=transport_options(broker, settings, timeout=timeout) | given,
            broker_connection_timeout=min(timeout, 5.0),
        )

    def connection_for_write(self, url: str | None = None, **options: Any) -> Connection:
        """A connection for sending."""
        connection: Connection = super().connection_for_write(self._chosen(url), **options)
        return connection

    def connection_for_read(self, url: str | None = None, **options: Any) -> Connection:
        """A connection for receiving."""
        connection: Connection = super().connection_for_read(self._chosen(url), **options)
        return connection

    @cached_property
    def trouble(self) -> tuple[type[BaseException], ...]:
        """What may be raised when the broker does not answer or refuses."""
        return trouble(self.connection_for_write())

    def _chosen(self, url: str | None) -> str:
        """The pinned broker, unless somebody asks for one that is not just what Celery takes for the default."""
        defaults = (None, self.conf.broker_url, self.conf.broker_read_url, self.conf.broker_write_url)
        return self.pinned_broker if url in defaults else str(url)


def trouble(connection: Connection) -> tuple[type[BaseException], ...]:
    """What may be raised when the broker does not answer or refuses; each transport has errors of its own."""
    transport = connection.transport
    own = (*transport.connection_errors, *transport.channel_errors)
    # Of these, kombu counts KeyError as trouble of the connection; here it would hide our own mistakes.
    return (KombuError, OSError, *(kind for kind in own if kind is not KeyError))


def joined(broker_url: str | Sequence[str] | None) -> str:
    """A broker's URL as Celery's configuration may have it, several or none, in one text that kombu takes as well."""
    return broker_url if isinstance(broker_url, str) else ";".join(broker_url or ())


def is_redis(broker_url: str) -> bool:
    """Whether kombu's Redis transport, or that for its sentinels, takes this URL."""
    return broker_url.startswith(("redis", "sentinel", "valkey"))
