"""A connection to NATS, and what a stream's answers mean."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.errors import AuthorizationError, ConnectionClosedError, Error, NoServersError
from nats.js.errors import APIError, NoStreamResponseError

from outbox_tasks.destinations.nats.internals import asks_for_tls
from outbox_tasks.model import Outcome, Result

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

REFUSALS = {
    10054: (Result.DEAD, "too_large"),  # more than the stream's max_msg_size
    10097: (Result.DEAD, "bad_headers"),  # larger than a stream can store
    10077: (Result.OUTAGE, "full"),  # max_msgs or max_bytes, in a stream that discards new messages
}
"""JetStream's error numbers → outcome and code. Others: an outage if the status is 5xx, else worth a retry."""

CLOSING_SECONDS = 0.1
"""A server that does not answer must not hold us up."""


class Link:
    """A connection and its event loop, which runs only while something is sent. It has no thread that a fork could
    lose.

    It never reconnects: a client that reconnects would later send messages that already count as failed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = Client()
        self._stream = self._client.jetstream()
        self._over = asyncio.Event()
        """Set when no more answers can come."""
        self._lost: Exception | None = None
        self._error: Exception | None = None

    def run(self, work: Coroutine[Any, Any, T], deadline: float) -> T:
        """Run it until the deadline. Not by `wait_for`: that waits for cancelled work, and the client swallows some
        cancellations."""
        task = self._loop.create_task(work)
        task.add_done_callback(_heard)
        self._loop.run_until_complete(asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic())))
        if not task.done():
            task.cancel()
            raise TimeoutError("no acknowledgement in time")
        return task.result()

    async def connect(self, options: Mapping[str, Any], seconds: float) -> None:
        """Connect to one of the servers."""
        options = dict(options)
        if options.get("tls"):
            # The client speaks TLS only if the server asks for it. So check that before the password is sent.
            for name in {"user", "password", "token"} & options.keys():
                options[name] = self._secured(options[name])
        try:
            await self._client.connect(
                **options,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=seconds,  # type: ignore[arg-type] # it is handed to asyncio, which takes fractions
                pending_size=0,  # no flush before all is handed over
                error_cb=self._on_error,
                closed_cb=self._on_closed,
            )
        except NoServersError as error:
            raise self._error or error from error
        if options.get("tls"):
            self._secured("")()

    def lives(self, deadline: float) -> bool:
        """Whether the connection still answers. While the loop does not run, nobody notices its end."""
        seconds = (deadline - time.monotonic()) / 4
        try:
            self.run(self._unless_over(self._client.flush(seconds)), deadline)  # type: ignore[arg-type] # as above
        except (Error, OSError):
            return False
        return True

    async def send(self, entries: Mapping[int, Entry], outcomes: dict[int, Outcome], seconds: float) -> None:
        """Publish all; `outcomes` fills as the acknowledgements come."""

        async def send_one(index: int, entry: Entry) -> None:
            outcomes[index] = await self._acknowledged(entry, seconds)

        await self._unless_over(asyncio.gather(*(send_one(index, entry) for index, entry in entries.items())))

    async def _unless_over(self, work: Awaitable[object]) -> None:
        """Wait for the work, or until no more answers can come. Raises what either of them raises."""
        working = asyncio.ensure_future(work)
        working.add_done_callback(_heard)
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
            if self._lost is not None:
                raise self._lost
            await working
        finally:
            working.cancel()
            over.cancel()

    async def _acknowledged(self, entry: Entry, seconds: float) -> Outcome:
        """Publish one message, and wait for the stream's answer."""
        subject, payload, headers = entry
        size = _size(entry)
        if size > self._client.max_payload:  # the server would close the connection
            return Outcome.dead("too_large", f"{size} bytes; max_payload is {self._client.max_payload}")
        try:
            await self._stream.publish(subject, payload, seconds, headers=headers)
        except NoStreamResponseError:
            return Outcome.outage("unroutable", "no stream takes this subject, or JetStream is not available")
        except APIError as error:
            other = (Result.OUTAGE, "unavailable") if (error.code or 0) >= 500 else (Result.RETRY, "refused")
            result, code = REFUSALS.get(error.err_code or 0, other)
            return Outcome(result, code, f"{error.description} ({error.err_code})")
        return Outcome.sent()

    def close(self) -> None:
        """Close the connection and the loop, in a moment, whatever the server does."""
        try:
            closing = self._loop.create_task(self._client.close())
            self._loop.run_until_complete(asyncio.wait({closing}, timeout=CLOSING_SECONDS))
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            # Also without tasks: the socket is closed in the next turn of the loop.
            self._loop.run_until_complete(
                asyncio.wait({*tasks, self._loop.create_task(asyncio.sleep(0))}, timeout=CLOSING_SECONDS)
            )
        finally:
            self._loop.close()

    def _secured(self, secret: str) -> Callable[[], str]:
        def value_if_secure() -> str:
            if not asks_for_tls(self._client):
                raise Error("nats: secure connection not offered by the server")
            return secret

        return value_if_secure

    async def _on_error(self, error: Exception) -> None:
        self._error = error
        if "permissions violation" in str(error).lower():  # it comes instead of acknowledgements
            self._fail(error)

    async def _on_closed(self) -> None:
        self._fail(self._client.last_error or ConnectionClosedError())

    def _fail(self, error: Exception) -> None:
        self._lost = error
        self._over.set()


def _heard(work: asyncio.Future[Any]) -> None:
    """Take the exception of work that was given up, or asyncio complains that nobody did."""
    if not work.cancelled():
        work.exception()


def code_of(error: Exception) -> str:
    for kind, code in TROUBLE:
        if isinstance(error, kind):
            return code
    text = str(error).lower()
    return next((code for words, code in WORDS if words in text), "connection")


def _size(entry: Entry) -> int:
    """Bytes as the server counts them against `max_payload`: headers too."""
    _, payload, headers = entry
    return (
        len(b"NATS/1.0\r\n\r\n")
        + len(payload)
        + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
    )
