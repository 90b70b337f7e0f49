"""NATS JetStream: `nats://user:password@host:4222/subject`, published with acknowledgement, a bundle at once.

`nats://token@host/subject` logs in with a token; several hosts of a cluster stand with commas between them. Without a
subject in the path, it is the destination's name; `?by_type=true` adds the event type to it (`shop.order.created`).
`?tls=true` insists on TLS, with the certificates that the system trusts. The headers are those of the CloudEvents
binding for NATS, binary mode (`ce-id`, …), with the message's own beside them, and `Nats-Msg-Id` is the message's id,
by which JetStream drops repetitions.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import AuthorizationError, ConnectionClosedError, Error, NoServersError

from outbox_tasks.errors import ConfigurationError, PermanentError
from outbox_tasks.events import attributes, own_headers
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import HIDDEN, Destination, Settings

T = TypeVar("T")
Entry = tuple[str, bytes, dict[str, str]]
"""Subject, payload and headers."""

TROUBLE: tuple[tuple[type[Exception], str], ...] = (
    (AuthorizationError, "unauthorized"),
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (OSError, "connection"),
)
"""What the client raises → the code of an outage. Any other error of NATS goes by its words, below."""

WORDS = (
    ("authorization violation", "unauthorized"),
    ("authentication", "unauthorized"),
    ("permissions violation", "unauthorized"),
    ("secure connection", "tls"),
)
"""Parts of what the server says (`-ERR '…'`) → the code of an outage; else it is `connection`."""

REFUSALS: dict[int, tuple[Callable[[str, str], Outcome], str]] = {
    10054: (Outcome.dead, "too_large"),  # more than the stream's max_msg_size
    10097: (Outcome.dead, "bad_headers"),  # larger than a stream can store
    10052: (Outcome.retry, "rollup_refused"),
    10077: (Outcome.outage, "full"),  # max_msgs or max_bytes, in a stream that discards new messages
    10023: (Outcome.outage, "full"),  # the server's own limits
    10047: (Outcome.outage, "full"),  # no storage left
    10039: (Outcome.outage, "unavailable"),  # JetStream is not enabled for this account
}
"""JetStream's error numbers → outcome and code. Others: an outage if the status is 503, else worth a retry."""

UNANSWERED = Outcome.retry("bad_answer", "it was sent, and there is no answer")
IDLE = 1.0
"""Seconds after which a connection is tried before use: the loop did not run, so that its end would not be known."""
CLOSING = 0.1
"""Seconds for closing: a server that does not answer must not hold us up."""
OVERHEAD = len(b"NATS/1.0\r\n\r\n")
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
SUBJECT = re.compile(r"[^\s\x00.*>]+(\.[^\s\x00.*>]+)*")
UNCODED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What stands for itself in an attribute's header; the binding wants the rest percent-encoded."""


class NatsPublisher:
    """Publishes to one subject. Sent means that a stream has acknowledged the message."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._timeout = settings.send_timeout
        self.subject, self._by_type, self._options = _read(destination)
        self._link: _Link | None = None

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All are on their way, in order, before the first acknowledgement is waited for."""
        deadline = time.monotonic() + self._timeout
        outcomes: dict[int, Outcome] = {}
        entries: dict[int, Entry] = {}
        for index, message in enumerate(messages):
            try:
                entries[index] = self._entry(message)
            except PermanentError as error:
                outcomes[index] = Outcome.dead(error.code, str(error))
            except UnicodeEncodeError as error:
                outcomes[index] = Outcome.dead("bad_headers", str(error))
        if not entries:
            return list(outcomes.values())
        failed = None
        try:
            link = self._connected(deadline)
            link.run(link.send(entries, outcomes), deadline)
        except (Error, OSError) as error:
            self.close()
            failed = Outcome.outage(_code(error), str(error) or type(error).__name__)
        except BaseException:  # a time limit can strike anywhere, and leaves a loop that nobody knows the state of
            self.close()
            raise
        return [outcomes.get(index) or failed or UNANSWERED for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, deadline: float) -> _Link:
        if self._link is not None and not self._link.lives(deadline):
            self.close()
        if self._link is None:
            self._link = _Link()
            self._link.run(self._link.connect(self._options, self._timeout / 2), deadline)
        return self._link

    def _entry(self, message: LeasedMessage) -> Entry:
        subject = f"{self.subject}.{message.event_type}" if self._by_type else self.subject
        if self._by_type and not SUBJECT.fullmatch(message.event_type):
            raise PermanentError(f"{message.event_type!r} can't be a part of a NATS subject", code="bad_subject")
        headers = {f"ce-{name}": quote(value, UNCODED) for name, value in attributes(message, self._source).items()}
        headers["ce-specversion"] = "1.0"
        headers["ce-datacontenttype"] = quote(message.content_type, UNCODED)
        headers["Nats-Msg-Id"] = message.id
        if message.headers != {}:
            headers |= _own(message)
        return subject, message.payload, headers


def _own(message: LeasedMessage) -> dict[str, str]:
    """The message's own headers; with `h_` where the name is one that the server or a reader acts upon."""
    result = {}
    for name, value in own_headers(message).items():
        if not HEADER_NAME.fullmatch(name) or UNPRINTABLE.search(value):
            raise PermanentError(f"the header {name!r} can't be a header of NATS", code="bad_headers")
        taken = name.lower().startswith(("nats-", "ce-")) or name.lower() == "content-type"
        result[f"h_{name}" if taken else name] = value
    return result


class _Link:
    """A connection and its event loop, which runs only while something is sent: no thread, nothing to lose in a fork.

    It never reconnects: a client that did would send again, by itself and later, what has been given back as failed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = Client()
        self._used = 0.0
        self._inbox = ""
        self._serial = 0
        self._waiting: dict[str, int] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._over = asyncio.Event()
        """All is answered, or nothing more will be."""
        self._lost: Exception | None = None
        self._error: Exception | None = None

    def run(self, work: Coroutine[Any, Any, T], deadline: float) -> T:
        """Not `wait_for`: it waits for cancelled work, and the client swallows cancellations in places."""
        task = self._loop.create_task(work)
        self._loop.run_until_complete(asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic())))
        if not task.done():
            task.cancel()
            raise TimeoutError("no acknowledgement in time")
        self._used = time.monotonic()
        return task.result()

    async def connect(self, options: Mapping[str, Any], patience: float) -> None:
        """Connect to one of the servers, and listen for acknowledgements."""
        options = dict(options)
        if options.get("tls"):
            # The client talks TLS if the server asks for it, else not: so ask before the password is shown.
            for name in {"user", "password", "token"} & options.keys():
                options[name] = self._secured(options[name])
        try:
            await self._client.connect(
                **options,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=patience,  # type: ignore[arg-type] # it is handed to asyncio, which takes fractions
                pending_size=0,  # no flush in the middle: all is handed over, then waited for
                error_cb=self._on_error,
                closed_cb=self._on_closed,
            )
        except NoServersError as error:
            raise self._error or error from error
        if options.get("tls"):
            self._secured("")()
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_answer)

    def lives(self, deadline: float) -> bool:
        """Whether the connection still answers; one that was used a moment ago is not asked."""
        if time.monotonic() - self._used < IDLE:
            return not self._client.is_closed
        patience = (deadline - time.monotonic()) / 4
        try:
            return self.run(self._answers(patience), deadline)
        except (Error, OSError):
            return False

    async def _answers(self, patience: float) -> bool:
        self._over.clear()
        ping = self._client.flush(patience)  # type: ignore[arg-type] # as above
        tasks = {self._loop.create_task(ping), self._loop.create_task(self._over.wait())}
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return self._lost is None and not any(task.exception() for task in done)

    async def send(self, entries: Mapping[int, Entry], outcomes: dict[int, Outcome]) -> None:
        """Publish all; `outcomes` fills as the answers come."""
        self._over.clear()
        self._outcomes = outcomes
        self._waiting = {}
        fitting: list[tuple[str, Entry]] = []
        for index, entry in entries.items():
            size = _size(entry)
            if size > self._client.max_payload:  # the server would close the connection, on the neighbours too
                outcomes[index] = Outcome.dead("too_large", f"{size} bytes; max_payload is {self._client.max_payload}")
                continue
            self._serial += 1
            self._waiting[str(self._serial)] = index
            fitting.append((str(self._serial), entry))
        for token, (subject, payload, headers) in fitting:
            await self._client.publish(subject, payload, f"{self._inbox}.{token}", headers)
        if self._waiting:
            await self._over.wait()
        if self._waiting and self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """Close the connection and the loop, in a moment, whatever the server does."""
        try:
            closing = self._loop.create_task(self._client.close())
            self._loop.run_until_complete(asyncio.wait({closing}, timeout=CLOSING))
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSING))
        finally:
            self._loop.close()

    def _secured(self, secret: str) -> Callable[[], str]:
        def told() -> str:
            if not self._client._server_info.get("tls_required"):
                raise Error("nats: secure connection not offered by the server")
            return secret

        return told

    async def _on_answer(self, answer: Msg) -> None:
        index = self._waiting.pop(answer.subject.rpartition(".")[2], None)
        if index is not None:
            self._outcomes[index] = _outcome(answer)
        if not self._waiting:
            self._over.set()

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        if "permissions violation" in str(error).lower():  # it comes instead of acknowledgements
            self._fail(error)

    async def _on_closed(self) -> None:
        self._fail(self._client.last_error or ConnectionClosedError())

    def _fail(self, error: Exception) -> None:
        self._lost = error
        self._over.set()


def _outcome(answer: Msg) -> Outcome:
    """What an answer means."""
    if answer.headers and answer.headers.get("Status") == "503":
        return Outcome.outage("unroutable", "no stream takes this subject, or JetStream is not available")
    try:
        told = json.loads(answer.data)
        if "error" not in told and "stream" in told and "seq" in told:
            return Outcome.sent()
        error = told["error"]
        number, status, text = error.get("err_code"), error["code"], f"{error.get('description')}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return Outcome.retry("bad_answer", "somebody who is not a stream has answered")
    make, code = REFUSALS.get(number, (Outcome.outage, "unavailable") if status == 503 else (Outcome.retry, "refused"))
    return make(code, f"{text} ({number})")


def _code(error: Exception) -> str:
    for kind, code in TROUBLE:
        if isinstance(error, kind):
            return code
    text = str(error).lower()
    return next((code for words, code in WORDS if words in text), "connection")


def _size(entry: Entry) -> int:
    """Bytes as the server counts them against `max_payload`: headers too."""
    _, payload, headers = entry
    return OVERHEAD + len(payload) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())


def _read(destination: Destination) -> tuple[str, bool, dict[str, Any]]:
    """Subject, whether the event type is added, and the client's options. Raises `ConfigurationError`."""
    parts = urlsplit(destination.url)
    login, _, hosts = parts.netloc.rpartition("@")
    subject = unquote(parts.path.removeprefix("/")) or destination.name
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    flags = {name: query.pop(name, "false") for name in ("by_type", "tls")}
    servers = [urlsplit(f"nats://{host}") for host in hosts.split(",")]
    rule = None
    if query or not set(flags.values()) <= {"true", "false"}:
        rule = "the options of a nats:// URL are by_type=true and tls=true"
    elif not all(server.hostname for server in servers):
        rule = "it must name a host, as in nats://localhost:4222/shop.orders"
    elif not SUBJECT.fullmatch(subject) or "#" in destination.url:
        rule = "its path is not a subject that can be published to, such as shop.orders"
    if rule:
        raise ConfigurationError(setting=f"destinations.{destination.name}.url", value=HIDDEN, rule=rule)
    options: dict[str, Any] = {"servers": [f"nats://{_bracketed(s.hostname)}:{s.port or 4222}" for s in servers]}
    user, colon, password = login.partition(":")
    if login:
        options |= {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    if flags["tls"] == "true":
        options["tls"] = ssl.create_default_context()
    return subject, flags["by_type"] == "true", options


def _bracketed(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else f"{host}"
