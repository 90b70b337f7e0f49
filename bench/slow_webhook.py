"""A webhook that is quick, but for one request in fifty, and what it has received."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from itertools import pairwise
from typing import Any

QUICK, SLOW, SHARE = 0.005, 1.5, 0.02
"""Seconds of most answers, of the others, and how many these are."""


class SlowWebhook:
    """Answers in a thread of its own. It must cost little: it shares the machine with the relay."""

    def __init__(self) -> None:
        self.arrived: dict[str, list[int]] = defaultdict(list)
        """The numbers of the messages of each key, as they came."""
        self.count = 0
        self.spent = 0.0
        """Seconds that all answers took together."""
        self._chance = random.Random(8)
        self._loop = asyncio.new_event_loop()
        server = self._loop.run_until_complete(self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?outbox_private=allow"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def wrong(self) -> int:
        """How many messages came behind a later one of their key, or twice."""
        return sum(later <= one for each in self.arrived.values() for one, later in pairwise(each))

    def answer(self, transport: Any, headers: bytes, body: bytes) -> None:
        """Take a message, and answer in time."""
        key = next((line[17:] for line in headers.split(b"\r\n") if line.lower().startswith(b"ce-partitionkey:")), b"")
        wait = SLOW if self._chance.random() < SHARE else QUICK
        self._loop.call_later(wait, transport.write, b"HTTP/1.1 204 No Content\r\n\r\n")
        self._loop.call_later(wait, self._note, key.decode(), json.loads(body)["id"], wait)

    def _note(self, key: str, number: int, seconds: float) -> None:
        self.arrived[key].append(number)
        self.count += 1
        self.spent += seconds


class _Connection(asyncio.Protocol):
    def __init__(self, webhook: SlowWebhook) -> None:
        self._webhook, self._read = webhook, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        headers, end, body = self._read.partition(b"\r\n\r\n")
        length = next((int(x[15:]) for x in headers.split(b"\r\n") if x.lower().startswith(b"content-length:")), 0)
        if end and len(body) >= length:
            self._read = b""
            self._webhook.answer(self._transport, headers, body)
