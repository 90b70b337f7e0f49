"""Connections to a broker: their options, and an app that keeps to the broker it was made with."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError

from outbox_tasks.broker.tls import VerifyingAMQP
from outbox_tasks.settings import Settings

ANSWER_SECONDS = 3.0
"""Seconds that the broker has to answer. Connections that died silently take this long each, one after another."""


def transport_options(broker_url: str, settings: Settings, *, timeout: float = ANSWER_SECONDS) -> dict[str, Any]:
    """kombu's transport options for a broker. With the defaults a half-open connection hangs a worker for good."""
    # kombu would wait two seconds before it connects again. Refused tasks go back to the table instead.
    connecting = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
    if broker_url.startswith(("amqp", "pyamqp")):
        return connecting | {"confirm_publish": True, "read_timeout": timeout, "write_timeout": timeout}
    if not is_redis(broker_url):
        return connecting
    return connecting | {
        "visibility_timeout": settings.visibility_timeout,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, ANSWER_SECONDS),
        "socket_keepalive": True,
        "health_check_interval": 3,
        # No list of unacknowledged messages in Redis: the lease brings a lost task back, long before the visibility
        # timeout would. A Redis that was full, or hung, refused the list: that ended workers or used up their prefetch.
        "ack_emulation": False,
    }


class PinnedCelery(Celery):  # type: ignore[misc]
    """An app that keeps to the broker it was made with. Other apps prefer CELERY_BROKER_URL, which in an application's
    environment names the application's broker.
    """

    amqp_cls = VerifyingAMQP

    def __init__(self, name: str, *, broker: str, settings: Settings, timeout: float = ANSWER_SECONDS) -> None:
        super().__init__(name, broker=broker, set_as_current=False)
        self.pinned_broker = broker
        is_relays = broker == settings.broker_url
        given = settings.broker_transport_options if is_relays else {}
        self.conf.update(
            broker_url=broker,
            broker_password=settings.broker_password if is_relays else None,
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
        """The pinned broker; or the one that the caller names, unless that is one of Celery's defaults."""
        defaults = (None, self.conf.broker_url, self.conf.broker_read_url, self.conf.broker_write_url)
        return self.pinned_broker if url in defaults else str(url)


def trouble(connection: Connection) -> tuple[type[BaseException], ...]:
    """The errors of a broker that does not answer or refuses: each transport has its own."""
    transport = connection.transport
    own = (*transport.connection_errors, *transport.channel_errors)
    # kombu counts KeyError as an error of the connection. Here that would hide our own mistakes.
    return (KombuError, OSError, *(kind for kind in own if kind is not KeyError))


def is_redis(broker_url: str) -> bool:
    """Whether kombu's Redis transport, or that for its sentinels, takes this URL."""
    return broker_url.startswith(("redis", "sentinel", "valkey"))
