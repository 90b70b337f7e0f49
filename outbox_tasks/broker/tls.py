"""Connections to brokers with TLS. They check the server's certificate and its name, unless the URL or the application
says otherwise: kombu takes any certificate for `rediss://`, and for `amqps://` a trusted one of any name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ssl import CERT_NONE
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection
from kombu.utils.url import parse_ssl_cert_reqs, url_to_parts

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.text import redacted

SECURE = ("rediss", "valkeys", "amqps")
"""Schemes that mean TLS. Others have it if there are options for it."""

REDIS, RABBIT = ("redis", "valkey", "sentinel"), ("amqp", "pyamqp")

OF_RABBIT = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""What a URL may say to py-amqp, beside the two options that say what is checked."""


def verified(
    url: str | Sequence[str] | None, *arguments: Any, ssl: Any = None, transport_options: Any = None, **keywords: Any
) -> Connection:
    """kombu's `Connection`, which knows whom it speaks to. Raises `ConfigurationError`."""
    if url is not None:
        url = url if isinstance(url, str) else ";".join(url)
        url, ssl = _told(url, ssl)
        if url.startswith("sentinel"):
            transport_options = {**(transport_options or {})}
            transport_options["sentinel_kwargs"] = _of_sentinels(transport_options, ssl)
    keywords |= {"ssl": ssl or False, "transport_options": transport_options}
    return Connection(url, *arguments, **keywords)


def own_connection(app: Celery, **options: Any) -> Connection:
    """A connection of ours to the broker of an app, which makes its own as it likes if it has no relay installed."""
    if app.amqp.Connection is Connection:
        url = app.conf.broker_write_url or ""
        url, ssl = _told(url if isinstance(url, str) else ";".join(url), app.conf.broker_use_ssl)
        options |= {"url": url or None, "ssl": ssl or None}
    made: Connection = app.connection_for_write(**options)
    return made


class VerifyingAMQP(AMQP):  # type: ignore[misc]
    """Makes all connections of an app by `verified`."""

    Connection = staticmethod(verified)


class PerHost(dict[str, Any]):
    """Options of py-amqp for several hosts. Wherever kombu finds no name it enters that of the host: here with each
    connection, not only with the first."""

    def __getitem__(self, name: str) -> Any:
        return None if name == "server_hostname" else super().__getitem__(name)


def _told(url: str, given: Any) -> tuple[str, Any]:
    """The URL, which may be several, without options for TLS; and these as kombu's transports take them. The URL counts
    before what is given, and a dictionary that an application gives stays as it is."""
    urls = url.split(";")
    schemes = {one.partition("://")[0] for one in urls}
    try:
        parts = [url_to_parts(one) for one in urls]
    except ValueError:  # its text may quote a password
        raise _unusable(url, "it can't be read; special characters in a password are percent-encoded") from None
    asked = {name: value for part in parts for name, value in part.query.items() if name.startswith("ssl_")}
    if not schemes <= {*SECURE, *REDIS, *RABBIT} or (isinstance(given, dict) and given and not asked):
        return url, given
    if not (asked or given or schemes.intersection(SECURE)):
        return url, None
    checked, named = asked.pop("ssl_cert_reqs", "required"), asked.pop("ssl_check_hostname", "true").lower() != "false"
    try:
        required = parse_ssl_cert_reqs(checked)
    except KeyError:
        raise _unusable(url, "its ssl_cert_reqs must be required, optional or none") from None
    named = named and required != CERT_NONE
    bare = ";".join(map(_without_options, urls))
    if schemes.isdisjoint({*RABBIT, "amqps"}):
        return bare, {**asked, "ssl_cert_reqs": required, "ssl_check_hostname": named}
    if unknown := sorted(asked.keys() - set(OF_RABBIT)):
        raise _unusable(url, f"RabbitMQ's client does not know its option {unknown[0]}")
    found = {name.removeprefix("ssl_"): value for name, value in asked.items()} | {"cert_reqs": required}
    if not named:
        return bare, found
    hosts = [part.hostname for part in parts]
    if len(set(hosts)) > 1:
        return bare, PerHost(found, server_hostname=None)
    return bare, {**found, "server_hostname": hosts[0]}  # kombu would enter 127.0.0.1 for localhost


def _of_sentinels(transport_options: Mapping[str, Any], ssl: Any) -> dict[str, Any]:
    """How to connect to the sentinels. Whoever answers in their place says which server gets the password."""
    sockets = {name: value for name, value in transport_options.items() if name.startswith("socket_")}
    return {**sockets, **({"ssl": True, **ssl} if ssl else {}), **(transport_options.get("sentinel_kwargs") or {})}


def _without_options(url: str) -> str:
    place, _, query = url.partition("?")
    rest = "&".join(pair for pair in query.split("&") if not pair.startswith("ssl_"))
    return f"{place}?{rest}" if rest else place


def _unusable(url: str, rule: str) -> ConfigurationError:
    return ConfigurationError(setting="broker_url", value=redacted(url), rule=rule)
