"""A destination that fails sometimes: stands before a Redis server and drops a share of the requests.

What fails is a real connection, seen by the stock publisher: it is closed before the request, in the middle
of it, or after all of it, when the answer is lost and nobody can know whether the messages arrived. Each time
a line says which. After SIGUSR1 the next request with messages is slow, so that its sender can be met at it.
Run by path with `python -I -S`, listening on an inherited socket: so it starts in no time.

    demo_destination.py <socket's file descriptor> <host> <port> <share of requests with messages that fail>
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from contextlib import suppress

MISHAPS = [("refused", 0.0)] * 3 + [("cut off", 0.5), ("unanswered", 1.0)]
"""What can happen to a request, and the part of it that reaches Redis all the same; the likelier more often."""

LATENCY = 0.002
"""Seconds that a request is on its way, as over a network."""

HELD = 1.0
"""Seconds that a request which is held takes."""

AT_ONCE = 1 << 20


class Front:
    """Hands the connections of the publishers on to Redis."""

    def __init__(self, host: str, port: int, share: float) -> None:
        self._host = host
        self._port = port
        self._share = share
        self._hold = False

    def hold(self) -> None:
        """Be slow with the next request that has messages."""
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
            mishap, arrives = random.choice(MISHAPS)
            answers.cancel()
            redis_writer.write(request[: int(len(request) * arrives)])
            print(mishap, flush=True)
            return


async def _answer(redis_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while answer := await redis_reader.read(AT_ONCE):
            writer.write(answer)
            await writer.drain()
    writer.close()


async def main(descriptor: str, host: str, port: str, share: str) -> None:
    """Serve until we are stopped."""
    front = Front(host, int(port), float(share))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, front.hold)
    listening = socket.socket(fileno=int(descriptor))
    server = await asyncio.start_server(front.connection, sock=listening, limit=AT_ONCE)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
