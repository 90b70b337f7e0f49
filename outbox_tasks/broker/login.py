"""Logins whose password changes, as kombu and redis-py take them. Each new connection asks for the password."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import amqp
import kombu
from kombu.transport import pyamqp
from redis.credentials import CredentialProvider

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.password import Password


class RedisLogin(CredentialProvider):
    """redis-py calls it with each new connection. There are few of these, so it never gives an old answer."""

    def __init__(self, url: str, password: Password) -> None:
        self._user = unquote(urlsplit(url).username or "")
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The user, if the URL names one, and the password. Raises `PasswordUnavailable`."""
        password = self._password.ask_anew()
        return (self._user, password) if self._user else (password,)


class Link(pyamqp.Connection):
    """A connection to RabbitMQ. kombu and Celery connect again after a connection was lost, but not after a refusal.
    Here the password has changed perhaps, so a refusal is a lost connection."""

    def connect(self, callback: Any = None) -> Any:
        try:
            return super().connect(callback)
        except amqp.AccessRefused as refused:
            raise amqp.RecoverableConnectionError(str(refused)) from refused


@cache
def rabbitmq_transport(base: Any, password: Password) -> Any:
    """kombu's transport `base`, which asks for the password with each new connection."""

    class Asking(base):  # type: ignore[misc]
        Connection = Link

        def establish_connection(self) -> Any:
            self.client.password = password.ask_anew()
            return super().establish_connection()

    return Asking


def connection(url: str, password: Any = None, **keywords: Any) -> kombu.Connection:
    """kombu's `Connection`. If `password` is a `Password`, each connect asks for it. Raises `ConfigurationError`."""
    if not isinstance(password, Password):
        return kombu.Connection(url, password=password, **keywords)
    if url.startswith(("amqp", "pyamqp")):
        if ";" in url:  # kombu would take the password and the transport from the next URL
            raise _unusable(password, "with RabbitMQ it needs one URL, for example that of a load balancer")
        base = pyamqp.SSLTransport if url.startswith("amqps") else pyamqp.Transport
        keywords["transport"] = rabbitmq_transport(base, password)
    elif kombu.VERSION >= (5, 6):
        keywords["credential_provider"] = RedisLogin(url, password)
    else:
        raise _unusable(password, f"with Redis it needs kombu 5.6, and kombu {kombu.__version__} is installed")
    return kombu.Connection(url, **keywords)


def _unusable(password: Password, rule: str) -> ConfigurationError:
    return ConfigurationError(setting="broker_password", value=password.source, rule=rule)
