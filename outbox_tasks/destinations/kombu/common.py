"""What all kinds of queues share: the message as it is sent, the options of a URL, the meaning of errors."""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

import amqp
from kombu.utils.url import parse_ssl_cert_reqs
from redis.exceptions import RedisError

from outbox_tasks.destinations.common import options, redis_answers
from outbox_tasks.model import Outcome, Result
from outbox_tasks.settings.destination import Destination

FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TLS: options.Options = {
    **dict.fromkeys(FILES, options.TEXT),
    "ssl_cert_reqs": options.Kind(
        "required, optional or none", re.compile("(CERT_)?(required|optional|none)", re.IGNORECASE), parse_ssl_cert_reqs
    ),
}
AMQP: options.Options = {
    **dict.fromkeys(("queue", "exchange", "routing_key"), options.TEXT),
    "declare": options.FLAG,
}
OPTIONS: dict[str, options.Options] = {
    "amqp": AMQP,
    "amqps": {**AMQP, **TLS},
    "redis": {"fanout": options.TEXT},
    "rediss": {"fanout": options.TEXT, **TLS},
    "azurestoragequeues": {"queue": options.TEXT},
}
"""The options of a URL by its scheme."""

AMQP_REPLIES = {
    311: (Result.DEAD, "too_large"),
    312: (Result.RETRY, "unroutable"),  # no queue for this routing key; others may have one
    320: (Result.OUTAGE, "connection"),
    403: (Result.OUTAGE, "unauthorized"),
    404: (Result.OUTAGE, "unroutable"),  # no such exchange
    406: (Result.DEAD, "refused"),  # this message as it is, such as a header CC that is no list
    530: (Result.OUTAGE, "not_allowed"),  # no such virtual host, or not for this user
}
ERRORS = {
    "ClientAuthenticationError": (Result.OUTAGE, "unauthorized"),
    "TimeoutError": (Result.OUTAGE, "timeout"),
    "ServiceRequestTimeoutError": (Result.OUTAGE, "timeout"),
    "ServiceResponseTimeoutError": (Result.OUTAGE, "timeout"),
    "ServiceRequestError": (Result.OUTAGE, "connection"),
    "ServiceResponseError": (Result.OUTAGE, "connection"),
    "ConnectionError": (Result.OUTAGE, "connection"),
    "OSError": (Result.OUTAGE, "connection"),
    "MessageNacked": (Result.RETRY, "nacked"),
}
"""By the names of the clients' exceptions or of their base classes, so that only one client need be installed."""

HTTP = {404: (Result.OUTAGE, "unroutable"), 413: (Result.DEAD, "too_large"), 429: (Result.OUTAGE, "http_429")}
TEXT = re.compile(r"(text/[^;]+|application/(json|xml|[^;]+\+(json|xml)))(; *charset=utf-?8)?", re.IGNORECASE)
UNWRITABLE = (struct.error, ValueError, amqp.FrameSyntaxError)
"""What py-amqp raises, before it writes, for what AMQP can't express, such as a header's name of 300 bytes."""

UNROUTABLE = Outcome.retry("unroutable", "no queue takes what is sent to this exchange with this routing key")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as kombu's transports take it."""

    id: str
    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, str]
    timestamp: int
    event_type: str


class Sender(Protocol):
    """Sends to one kind of broker."""

    def send(self, entries: Sequence[Entry], deadline: float) -> list[Outcome]: ...

    def close(self) -> None: ...


def outcome_of(error: BaseException) -> Outcome:
    """What an error means, by the tables above. If they don't know it, they may know its cause. Raises what they do not
    know, such as a time limit."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RedisError):
            return redis_answers.outcome_of(cause)
        text = str(cause).partition("\n")[0]
        if known := _known(cause, text):
            result, code = known
            return Outcome(result, code, text or repr(cause))
        cause = cause.__cause__
    raise error


def _known(error: BaseException, text: str) -> tuple[Result, str] | None:
    reply = getattr(error, "reply_code", None)
    if reply in AMQP_REPLIES:
        return (Result.DEAD, "too_large") if reply == 406 and "message size" in text else AMQP_REPLIES[reply]
    for kind in type(error).__mro__:
        if kind.__name__ in ERRORS:
            return ERRORS[kind.__name__]
    if status := getattr(error, "status_code", None):  # Azure
        return HTTP.get(status) or (Result.OUTAGE if status >= 500 else Result.RETRY, f"http_{status}")
    return None


def parts_of(destination: Destination) -> tuple[str, dict[str, Any]]:
    """The URL without its options, and the options."""
    return destination.url.partition("?")[0], options.read(destination, OPTIONS[destination.scheme])


def database(destination: Destination, url: str) -> tuple[str, str]:
    """A Redis URL without the queue in its path, and the queue."""
    parts = urlsplit(url)
    database, _, queue = parts.path.strip("/").partition("/")
    if database and not database.isdigit():
        raise destination.unusable("the path of a redis:// URL is /db/queue, as in redis://localhost:6379/1/orders")
    return urlunsplit(parts._replace(path=f"/{database or 0}")), unquote(queue)


def tls_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options for TLS by the names that Python's `ssl` has for them."""
    files = {name.removeprefix("ssl_"): values[name] for name in FILES if name in values}
    return {**files, "cert_reqs": values.get("ssl_cert_reqs", ssl.CERT_REQUIRED)}
