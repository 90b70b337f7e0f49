"""Webhooks that make trouble, each in a process of its own: in that of a bench it would slow down what is measured."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from outbox_tasks.local.ports import LOOPBACK, free_port

START_SECONDS = 120.0
"""How long the process may take to start on a busy machine."""


@contextmanager
def webhook(status: int, wait: float = 0.0) -> Iterator[str]:
    """The URL of a webhook that gives this answer to all, after so many seconds."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, status, wait), daemon=True)
    process.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if time.monotonic() > deadline:
                raise TimeoutError("the webhook does not start")
            time.sleep(0.05)
        yield f"http://{LOOPBACK}:{port}/?outbox_private=allow"
    finally:
        process.kill()
        process.join()


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a webhook that takes connections and never answers."""
    with socket.create_server((LOOPBACK, 0), backlog=1000) as listening:
        yield f"http://{LOOPBACK}:{listening.getsockname()[1]}/?outbox_private=allow"


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((LOOPBACK, port)) == 0


def _serve(port: int, status: int, wait: float) -> None:
    """Runs in that process."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                await asyncio.sleep(wait)
                writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(converse, LOOPBACK, port, backlog=1000) as server:
            await server.serve_forever()

    asyncio.run(serve())
