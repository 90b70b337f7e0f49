"""Where webhooks connect to: the public internet, unless a destination says that it means a private network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpcore  # the engine of httpx, whose parts can be replaced
import httpx

from outbox_tasks.errors import OutageError

REFUSED_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
]
"""What some Python counts as public and nobody's webhook is: metadata services of Azure and Oracle, ranges that IANA
has reserved or withdrawn, old ways to IPv4."""
PUBLIC = ipaddress.ip_network("2000::/3")
"""All of IPv6 that IANA has given out for the public internet."""
EMBEDDING = [ipaddress.ip_network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96")]
"""IPv6 addresses that stand for the IPv4 address at their end: mapped ones, and NAT64's."""
KEEP_ALIVE = 5.0
"""Seconds for which an idle connection is used again; servers close theirs after some, too."""


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


class Connections:
    """Connections to one URL's server. httpcore's own pool looks at all of them for each request, at twice the CPU."""

    def __init__(self, url: httpx.URL, *, private: bool) -> None:
        self._origin = httpcore.Origin(url.raw_scheme, url.raw_host, url.port or (443 if url.scheme == "https" else 80))
        self._private = private
        self._ssl: ssl.SSLContext | None = None
        self._idle: list[tuple[httpcore.AsyncHTTPConnection, Network]] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpcore.AsyncHTTPConnection]:
        """A connection of one's own for one request: one that is left open, or else a new one."""
        connection, network = await self._open() or self._new()
        try:
            yield connection
        finally:
            if connection.is_available():
                self._idle.append((connection, network))
            else:
                await network.aclose()

    async def aclose(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            await self._idle.pop()[1].aclose()

    async def _open(self) -> tuple[httpcore.AsyncHTTPConnection, Network] | None:
        while self._idle:
            connection, network = self._idle.pop()
            if not connection.has_expired():
                return connection, network
            await network.aclose()
        return None

    def _new(self) -> tuple[httpcore.AsyncHTTPConnection, Network]:
        if self._ssl is None and self._origin.scheme == b"https":
            self._ssl = httpx.create_ssl_context()
        network = Network(private=self._private)
        options: Any = {"ssl_context": self._ssl, "keepalive_expiry": KEEP_ALIVE, "network_backend": network}
        return httpcore.AsyncHTTPConnection(self._origin, **options), network


class Network(httpcore.AsyncNetworkBackend):
    """Resolves names itself, and connects to the very address that it has found to be allowed: a name that says
    something else the next moment (DNS rebinding) gains nothing. Host and server name stay those of the URL.

    For one connection."""

    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._plain = httpcore.AnyIOBackend()
        self._stream: httpcore.AsyncNetworkStream | None = None

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
                self._stream = await self._plain.connect_tcp(address, port, share)
                return self._stream
        self._stream = await self._plain.connect_tcp(allowed[-1], port, share)
        return self._stream

    async def aclose(self) -> None:
        """Close the connection that was made, whatever has become of it."""
        if self._stream is not None:
            await self._stream.aclose()


async def _addresses(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} can't be resolved: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet's, by all that is known of it."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in EMBEDDING):
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip not in PUBLIC:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in REFUSED_NETWORKS)
