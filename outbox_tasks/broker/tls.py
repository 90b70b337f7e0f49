"""Connections to brokers with TLS. They check the server's certificate and its name, unless the URL or the application
says otherwise. kombu alone takes any certificate for `rediss://`, and for `amqps://` a trusted one of any name.
"""

from __future__ import annotations

from collections.abc import Sequence
from ssl import CERT_NONE
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection
from kombu.utils.url import parse_ssl_cert_reqs, url_to_parts
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox_tasks.broker.login import connection
from outbox_tasks.broker.places import joined
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.text import redacted

TLS_SCHEMES = ("rediss", "valkeys", "amqps")
"""Schemes that mean TLS. The others below mean TLS if the URL has an option for it."""

REDIS_SCHEMES, RABBITMQ_SCHEMES = ("redis", "valkey", "sentinel"), ("amqp", "pyamqp")

RABBITMQ_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options of a URL that py-amqp takes, beside the two that say what is checked."""


def verified(
    url: str | Sequence[str] | None,
    userid: str | None = None,
    password: Any = None,
    virtual_host: str | None = None,
    port: int | None = None,
    *,
    ssl: Any = None,
    transport_options: Any = None,
    **keywords: Any,
) -> Connection:
    """kombu's `Connection`, which checks the server's certificate. Raises `ConfigurationError`."""
    url, ssl = _url_and_tls(joined(url), ssl)
    transport_options = _for_transport(url, transport_options, ssl)
    keywords |= {"userid": userid, "virtual_host": virtual_host, "port": port}
    return connection(url, password, ssl=ssl or False, transport_options=transport_options, **keywords)


def own_connection(app: Celery, **options: Any) -> Connection:
    """A connection to the broker of an app that checks the server's certificate, also if the app has no relay installed
    and its own connections don't."""
    url, ssl = _url_and_tls(joined(app.conf.broker_write_url), app.conf.broker_use_ssl)
    transport_options = _for_transport(url, options.get("transport_options"), ssl)
    options |= {"url": url or None, "ssl": ssl or None, "transport_options": transport_options}
    made: Connection = app.connection_for_write(**options)
    return made


class VerifyingAMQP(AMQP):  # type: ignore[misc]
    """Makes all connections of an app by `verified`."""

    Connection = staticmethod(verified)


class PerHost(dict[str, Any]):
    """Options of py-amqp for several hosts. Where kombu finds no `server_hostname`, it enters the name of the host.
    Here it never finds one, so that each connection gets the name of its own host."""

    def __getitem__(self, name: str) -> Any:
        return None if name == "server_hostname" else super().__getitem__(name)


def _url_and_tls(url: str, given: Any) -> tuple[str, Any]:
    """The URL without its options for TLS, and these options as kombu's transport takes them. The URL may be several,
    with `;` between. `given`: the application's `broker_use_ssl`, which counts only if the URL has no such option. A
    dictionary stays as the application wrote it."""
    urls = url.split(";")
    schemes = {each.partition("://")[0] for each in urls}
    try:
        parts = [url_to_parts(each) for each in urls]
    except ValueError:  # its text may quote a password
        raise _unusable(url, "it can't be read; special characters in a password are percent-encoded") from None
    options = {name: value for part in parts for name, value in part.query.items() if name.startswith("ssl_")}
    if not schemes <= {*TLS_SCHEMES, *REDIS_SCHEMES, *RABBITMQ_SCHEMES} or (
        isinstance(given, dict) and given and not options
    ):
        return url, given
    if not (options or given or schemes.intersection(TLS_SCHEMES)):
        return url, None
    plain_url = ";".join(map(_without_options, urls))
    try:
        cert_reqs = parse_ssl_cert_reqs(options.pop("ssl_cert_reqs", "required"))
    except KeyError:
        raise _unusable(url, "its ssl_cert_reqs must be required, optional or none") from None
    check_hostname = options.pop("ssl_check_hostname", "true").lower() != "false" and cert_reqs != CERT_NONE
    if schemes.isdisjoint({*RABBITMQ_SCHEMES, "amqps"}):
        return plain_url, {**options, "ssl_cert_reqs": cert_reqs, "ssl_check_hostname": check_hostname}
    if unknown := sorted(options.keys() - set(RABBITMQ_OPTIONS)):
        raise _unusable(url, f"RabbitMQ's client does not know its option {unknown[0]}")
    tls = {name.removeprefix("ssl_"): value for name, value in options.items()} | {"cert_reqs": cert_reqs}
    if not check_hostname:
        return plain_url, tls
    hosts = [part.hostname for part in parts]
    if len(set(hosts)) > 1:
        return plain_url, PerHost(tls, server_hostname=None)
    return plain_url, {**tls, "server_hostname": hosts[0]}  # kombu would enter 127.0.0.1 for localhost


def _for_transport(url: str, transport_options: Any, ssl: Any) -> Any:
    """The transport's options, for `sentinel://` with those of TLS for the sentinels: whoever answers in their place
    says which server gets the password."""
    if not url.startswith("sentinel"):
        return transport_options
    given = transport_options or {}
    sockets = {name: value for name, value in given.items() if name.startswith("socket_")}
    sockets["retry"] = Retry(NoBackoff(), 0)  # redis-py would ask a silent sentinel again and again, for ten seconds
    tls = {"ssl": True, **ssl} if ssl else {}
    return {**given, "sentinel_kwargs": {**sockets, **tls, **(given.get("sentinel_kwargs") or {})}}


def _without_options(url: str) -> str:
    place, _, query = url.partition("?")
    rest = "&".join(pair for pair in query.split("&") if not pair.startswith("ssl_"))
    return f"{place}?{rest}" if rest else place


def _unusable(url: str, rule: str) -> ConfigurationError:
    return ConfigurationError(setting="broker_url", value=redacted(url), rule=rule)
