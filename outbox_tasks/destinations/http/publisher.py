"""Webhooks: `https://shop.example/hooks?outbox_secret=whsec_…`, one POST a message, several at a time.

CloudEvents 1.0 HTTP binding, binary mode. The message's own headers go along as they are, unless HTTP, CloudEvents or
the signature own the name.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

import httpcore

from outbox_tasks.destinations.http import options as http_options
from outbox_tasks.destinations.http.network import Background, Connections
from outbox_tasks.destinations.http.options import TOKEN, Headers
from outbox_tasks.errors import OutageError, PasswordUnavailable, PermanentError
from outbox_tasks.model import EVENT_ID, LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, checked_headers, encoded

STATUSES = {
    401: (Result.OUTAGE, "unauthorized"),
    403: (Result.OUTAGE, "unauthorized"),
    404: (Result.RETRY, "unroutable"),
    405: (Result.OUTAGE, "unroutable"),
    410: (Result.RETRY, "unroutable"),
    413: (Result.DEAD, "too_large"),
    502: (Result.OUTAGE, "http_502"),
    503: (Result.OUTAGE, "http_503"),
    504: (Result.OUTAGE, "http_504"),
}
"""Answers with a meaning of their own. All others: 2xx is sent, 3xx an outage, the rest a retry."""
MESSAGES_FAULT = {400, 415, 422, 431}
"""Answers that blame the message. Another try would get the same answer, so it is dead."""
TROUBLE = {
    httpcore.TimeoutException: "timeout",
    httpcore.NetworkError: "connection",
    httpcore.RemoteProtocolError: "connection",
}
"""Exceptions that are an outage, and its code. Any other exception is a retry."""
RESERVED = re.compile(
    r"(?i)(ce-|content-|webhook-|proxy-).*|accept|accept-encoding|authorization|connection|expect|host"
    r"|idempotency-key|keep-alive|te|trailer|transfer-encoding|upgrade|user-agent"
)
"""Names that a message's own headers can't have: they would contradict the request's."""
NAME, VALUE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
UNENCODED = "".join(map(chr, range(0x21, 0x7F))).translate({ord(c): None for c in '"%'})
"""Characters that the CloudEvents binding does not encode in a header, §3.1.3.2."""
BODY_BYTES = 16_384
"""So much of an answer's body is read."""
BODY_SECONDS = 1.0
"""And for so long."""
REQUESTS_SHARE = 0.95
"""The part of `send_timeout` for the requests; the rest is for closing what is open by then."""
LOOP_SECONDS = 1.0
"""How much later than that we stop waiting for the loop: somebody has closed it at the same time."""

Connection = httpcore.AsyncConnectionPool

IN_FLIGHT = Outcome.outage("timeout", "no answer in time; it may have been taken")


class _Request(NamedTuple):
    id: str
    headers: Headers
    body: bytes


class _Sends(NamedTuple):
    """One call of `publish`."""

    requests: dict[int, _Request]
    outcomes: dict[int, Outcome]
    waiting: deque[deque[int]]
    """The places of the messages that wait: a queue for each key."""
    longer: float
    """Seconds after which no send begins; 0: no key has several messages, and all have the time of one send."""


class HttpPublisher:
    """Posts to one URL. Sent means that the endpoint has answered with a status of success."""

    asks_password = True
    batch_size = 100
    keeps_order = True
    """The publisher keeps the order of keys itself. In the waves of the relay one slow answer holds up all keys of a
    batch: a tenth of the rate was measured."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source, self._timeout = settings.source, settings.send_timeout
        self._longer = settings.sending_time_of(destination.name)
        self._passing = {Result.SENT, *((Result.DEAD,) if destination.on_dead == "skip" else ())}
        self._options = options = http_options.read(destination)
        url = options.url
        self._url = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        self._common: Headers = [
            (b"host", url.netloc),
            (b"user-agent", b"outbox-tasks"),
            (b"accept-encoding", b"identity"),
            (b"ce-specversion", b"1.0"),
        ]
        self._password, self._hidden = destination.password, options.hidden
        self._connections = PerProcess(partial(Connections, url, options.concurrency, private=options.private))
        self._background = PerProcess(Background)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """As many at a time as `outbox_concurrency` says. Each key goes on by itself: a slow answer holds up only what
        is behind it. If a key has several messages, the last send begins later, and so ends later."""
        requests, outcomes = encoded(messages, partial(self._request, self._login()))
        if requests:
            runs = _runs(messages)
            longer = self._longer if len(runs) < len(messages) else 0.0
            sends = _Sends(requests, outcomes, deque(runs), longer)
            self._background.get().run(self._send_all(sends), longer + self._timeout + LOOP_SECONDS)
        return [outcomes.get(place) or Outcome.behind() for place in range(len(messages))]

    def close(self) -> None:
        """Close the connections."""
        background = self._background.take()
        if background is not None:
            try:
                background.run(self._connections.get().aclose(), LOOP_SECONDS)
            finally:
                background.stop()

    def _login(self) -> Headers:
        authorization = self._options.authorization
        if self._password is not None:
            token = self._password.ask()
            self._hidden = [token, *self._options.hidden]
            if not TOKEN.fullmatch(token):
                reason = "a bearer token has only ASCII characters and no spaces"
                raise PasswordUnavailable(source=self._password.source, reason=reason)
            authorization = f"Bearer {token}"
        return [(b"authorization", authorization.encode())] if authorization else []

    def _request(self, login: Headers, message: LeasedMessage) -> _Request:
        headers = [*self._common, *login, (b"idempotency-key", message.id.encode())]
        try:
            for name, value in attributes(message, self._source).items():
                headers.append((b"ce-" + name.encode(), quote(value, safe=UNENCODED).encode()))
            headers.append(_field("content-type", message.content_type))
            headers.append((b"content-length", b"%d" % len(message.payload)))
            # Not only own_headers: the trace context has headers of its own in HTTP, which every tracer reads.
            for name, value in checked_headers(message).items():
                if name != EVENT_ID and not RESERVED.fullmatch(name):
                    headers.append(_field(name, value))
        except UnicodeEncodeError as error:
            raise PermanentError(f"the headers can't be encoded: {error.reason}", code="bad_headers") from error
        return _Request(message.id, headers, message.payload)

    async def _send_all(self, sends: _Sends) -> None:
        connections = self._connections.get()[: len(sends.waiting)]
        workers = [asyncio.create_task(self._work(connection, sends)) for connection in connections]
        try:
            ended, late = await asyncio.wait(workers, timeout=sends.longer + self._timeout * REQUESTS_SHARE)
        finally:
            for worker in workers:
                worker.cancel()
        if late:
            await asyncio.wait(late, timeout=self._timeout * (1 - REQUESTS_SHARE))
        unreachable = next((outcome for worker in ended if (outcome := worker.result())), None)
        answered = any(outcome.result is Result.SENT for outcome in sends.outcomes.values())
        no_time = Outcome.behind() if answered else Outcome.outage("timeout", "there was no time left to send it")
        for run in sends.waiting:
            sends.outcomes.setdefault(run[0], unreachable or no_time)

    async def _work(self, connection: Connection, sends: _Sends) -> Outcome | None:
        """Send one after the other. If it can't connect, it ends with the reason; others that are connected go on."""
        outcomes, until = sends.outcomes, time.monotonic() + (sends.longer or self._timeout)
        while sends.waiting and time.monotonic() < until:
            run = sends.waiting.popleft()
            place = run.popleft()
            if request := sends.requests.get(place):
                outcomes[place] = IN_FLIGHT  # stays, if the time is up during the send
                try:
                    async with asyncio.timeout(self._timeout * REQUESTS_SHARE):
                        await self._send(connection, place, request, outcomes)
                except (httpcore.ConnectError, httpcore.ConnectTimeout, OutageError) as error:
                    outcomes[place] = self._failed(error)
                    return outcomes[place]
                except TimeoutError:
                    pass  # its outcome says that it may have been taken
                except Exception as error:
                    if outcomes[place] is IN_FLIGHT:
                        outcomes[place] = self._failed(error)
            if run and outcomes[place].result in self._passing:
                sends.waiting.append(run)
        return None

    async def _send(self, connection: Connection, place: int, request: _Request, outcomes: dict[int, Outcome]) -> None:
        connect = {"connect": min(5.0, self._timeout / 2)}
        headers = request.headers + self._options.signature(request.id, request.body)
        async with connection.stream(
            b"POST", self._url, headers=headers, content=request.body, extensions={"timeout": connect}
        ) as response:
            # The status decides. After it the endpoint has the message, whatever is raised over the rest of the answer.
            outcomes[place] = self._answered(response.status, response.headers, b"")
            body = await _beginning(response)
            outcomes[place] = self._answered(response.status, response.headers, body)

    def _answered(self, status: int, headers: Headers, body: bytes) -> Outcome:
        if 200 <= status < 300:
            return Outcome.sent()
        if status // 100 == 3:  # the endpoint has moved, or a login page stands before it
            result, code = Result.OUTAGE, "redirected"
        else:
            other = Result.DEAD if status in MESSAGES_FAULT else Result.RETRY
            result, code = STATUSES.get(status, (other, f"http_{status}"))
        text = self._shown(f"HTTP {status} " + body.decode(errors="replace"))
        return Outcome(result, code, text, None if result is Result.DEAD else _retry_after(headers))

    def _failed(self, error: Exception) -> Outcome:
        text = self._shown(str(error) or type(error).__name__)
        if isinstance(error, OutageError):
            return Outcome.outage(error.code, text)
        for kind, code in TROUBLE.items():
            if isinstance(error, kind):
                return Outcome.outage(code, text)
        return Outcome.retry(type(error).__name__, text)

    def _shown(self, text: str) -> str:
        """The text without secrets and control characters. An endpoint may repeat in its answer what it was sent."""
        for secret in self._hidden:
            text = text.replace(secret, "***")
        printable = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(printable.split())[:200]


def _runs(messages: Sequence[LeasedMessage]) -> Collection[deque[int]]:
    """The places of the messages, by key. A message without a key is a run of its own."""
    runs: dict[object, deque[int]] = {}
    for place, message in enumerate(messages):
        runs.setdefault(place if message.key is None else message.key, deque()).append(place)
    return runs.values()


async def _beginning(response: httpcore.Response) -> bytes:
    """The beginning of the body. If an answer is not read to its end, its connection is closed."""
    body = b""
    async with asyncio.timeout(BODY_SECONDS):
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > BODY_BYTES:
                break
    return body[:BODY_BYTES]


def _field(name: str, value: str) -> tuple[bytes, bytes]:
    """A header, without the white space around its value, which HTTP does not count as part of it."""
    field = name.encode(), value.encode().strip(b" \t")
    if not (NAME.fullmatch(field[0]) and VALUE.fullmatch(field[1])):
        raise PermanentError(f"HTTP can't carry the header {name[:50]!r}", code="bad_headers")
    return field


def _retry_after(headers: Headers) -> float | None:
    """The seconds that Retry-After asks for, written as a number or a date."""
    value = next((value for name, value in headers if name.lower() == b"retry-after"), b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    with suppress(ValueError, OverflowError):
        date = parsedate_to_datetime(value)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return (date - datetime.now(UTC)).total_seconds()
    return None
