"""Where webhooks connect to: the public internet, unless a destination says that it means a private network."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import httpcore  # the engine of httpx, whose parts can be replaced
import httpx

from outbox_tasks.destinations.common.public_internet import is_public
from outbox_tasks.errors import OutageError


class Background:
    """An event loop in a thread of its own, so that `publish` may be called from any thread, or from another loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outbox webhooks", daemon=True)
        self._thread.start()

    def run(self, task: Coroutine[Any, Any, None], seconds: float) -> None:
        future = asyncio.run_coroutine_threadsafe(task, self._loop)
        try:
            future.result(seconds)
        except BaseException:  # Celery's time limit, for one
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Connections(list[httpcore.AsyncConnectionPool]):
    """Connections to the server of a URL. Each is a pool of one, which opens it when it is needed: a pool of ten looks
    at all of them for each request, at three times the CPU."""

    def __init__(self, url: httpx.URL, count: int, *, private: bool) -> None:
        options: Any = {
            "ssl_context": httpx.create_ssl_context() if url.scheme == "https" else None,
            "keepalive_expiry": 5.0,  # seconds; servers close idle connections too
            "network_backend": Network(private=private),
        }
        super().__init__(httpcore.AsyncConnectionPool(max_connections=1, **options) for _ in range(count))

    async def aclose(self) -> None:
        """Close those that are open."""
        for connection in self:
            await connection.aclose()


class Network(httpcore.AsyncNetworkBackend):
    """Resolves names, and connects to the very address that it has allowed: a name server that gives another address
    the next time (DNS rebinding) gains nothing. The request and the certificate are still about the URL's host."""

    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, *_: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        """A connection to the first address that can be reached; each has an equal part of the time."""
        timeout: float = options["timeout"]
        try:
            async with asyncio.timeout(timeout):
                addresses = await _addresses(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} can't be resolved: no answer in time") from error
        allowed = [address for address in addresses if self._private or is_public(address)]
        if not allowed:
            reason = f"{host} is in a private network ({', '.join(addresses)}), and outbox_private=allow is not set"
            raise OutageError(reason, code="private_address")  # name servers err, too: the next answer may be another
        share = timeout / len(allowed)
        for address in allowed[:-1]:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._plain.connect_tcp(address, port, share)
        return await self._plain.connect_tcp(allowed[-1], port, share)


async def _addresses(host: str, port: int) -> list[str]:
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} can't be resolved: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))
