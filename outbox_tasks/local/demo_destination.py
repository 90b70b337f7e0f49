"""A destination that fails sometimes: a proxy before a Redis server that drops a share of the requests.

It closes the publisher's connection before the request, in the middle of it, or after it. In the last case the answer
is lost, and nobody knows whether the messages arrived. Each time a line says which. After SIGUSR1 the next request with
messages is slow, so that its sender can be killed meanwhile. It runs by path with `python -I -S`, on an inherited
socket: so it starts at once.

    demo_destination.py <socket's file descriptor> <host> <port> <share of requests with messages that fail>
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from contextlib import suppress

FAILURES = [("refused", 0.0)] * 3 + [("cut off", 0.5), ("unanswered", 1.0)]
"""What can happen to a request, and the part of it that reaches Redis; the first is three times as likely."""

LATENCY = 0.002
"""Seconds that a request is on its way, as over a network."""

HELD = 1.0
"""Seconds that a slow request takes."""

AT_ONCE = 1 << 20


class Proxy:
    """Hands the publishers' requests on to Redis."""

    def __init__(self, host: str, port: int, share: float) -> None:
        self._host = host
        self._port = port
        self._share = share
        self._hold = False

    def hold(self) -> None:
        """Be slow with the next request with messages."""
        self._hold = True

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed, or fails."""
        with suppress(OSError):
            redis_reader, redis_writer = await asyncio.open_connection(self._host, self._port, limit=AT_ONCE)
            answers = asyncio.create_task(_answer(redis_reader, writer))
            try:
                await self._requests(reader, redis_writer, answers)
            finally:
                answers.cancel()
                redis_writer.close()  # sends what it still has first
        writer.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, redis_writer: asyncio.StreamWriter, answers: asyncio.Task[None]
    ) -> None:
        while request := await reader.read(AT_ONCE):
            await asyncio.sleep(LATENCY)
            if b"XADD" in request and self._hold:
                self._hold = False
                await asyncio.sleep(HELD)
            if b"XADD" not in request or random.random() >= self._share:
                redis_writer.write(request)
                await redis_writer.drain()
                continue
            failure, arrives = random.choice(FAILURES)
            answers.cancel()
            redis_writer.write(request[: int(len(request) * arrives)])
            print(failure, flush=True)
            return


async def _answer(redis_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while answer := await redis_reader.read(AT_ONCE):
            writer.write(answer)
            await writer.drain()
    writer.close()


async def main(descriptor: str, host: str, port: str, share: str) -> None:
    """Serve until we are stopped."""
    proxy = Proxy(host, int(port), float(share))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, proxy.hold)
    listening = socket.socket(fileno=int(descriptor))
    server = await asyncio.start_server(proxy.connection, sock=listening, limit=AT_ONCE)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
