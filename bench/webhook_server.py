"""A webhook in a process of its own: in that of a bench it would slow down what is measured."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from ctypes import c_double, c_long
from typing import Any

from outbox_tasks.local.ports import LOOPBACK, free_port

START = 120.0
"""Seconds that the process may take to start."""

Rule = Callable[[Any, int], tuple[int, float]]
"""The status of an answer and the seconds before it, to a body that has come for the n-th time."""


def refuses(body: Any, nth: int) -> tuple[int, float]:
    """Nothing is right, ever."""
    return 400, 0.0


def asks_again(body: Any, nth: int) -> tuple[int, float]:
    """Always too much."""
    return 429, 0.0


def is_slow(body: Any, nth: int) -> tuple[int, float]:
    """Three seconds for each."""
    return 204, 3.0


def fails_twice(body: Any, nth: int) -> tuple[int, float]:
    """Each fifth message fails twice."""
    return 503 if body["id"] % 5 == 0 and nth <= 2 else 204, 0.0


def is_slow_now_and_then(body: Any, nth: int) -> tuple[int, float]:
    """A quick one, but for one time in fifty."""
    return 204, 1.5 if random.random() < 0.02 else 0.005


class Webhook:
    """What the process has counted."""

    def __init__(self, rule: Rule) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._answers, self._late = spawning.Value(c_long, lock=False), spawning.Value(c_long, lock=False)
        self._seconds = spawning.Value(c_double, lock=False)
        self.port = free_port()
        shared = (self._answers, self._late, self._seconds)
        self._process = spawning.Process(target=_serve, args=(self.port, rule, *shared), daemon=True)

    def __enter__(self) -> Webhook:
        self._process.start()
        deadline = time.monotonic() + START
        while not self._listens():
            if time.monotonic() > deadline:
                raise TimeoutError("the webhook does not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/?outbox_private=allow"

    @property
    def answers(self) -> int:
        return int(self._answers.value)

    @property
    def seconds(self) -> float:
        """What all answers took together."""
        return float(self._seconds.value)

    @property
    def late(self) -> int:
        """How many messages came behind a later one of their key, or twice."""
        return int(self._late.value)

    def _listens(self) -> bool:
        with socket.socket() as asking:
            return asking.connect_ex((LOOPBACK, self.port)) == 0


@contextmanager
def silent() -> Any:
    """The URL of a webhook that takes connections and never answers."""
    with socket.create_server((LOOPBACK, 0), backlog=1000) as listening:
        yield f"http://{LOOPBACK}:{listening.getsockname()[1]}/?outbox_private=allow"


def _serve(port: int, rule: Rule, answers: Any, late: Any, seconds: Any) -> None:
    """Runs in that process."""
    times: Counter[int] = Counter()
    last: dict[bytes, int] = defaultdict(int)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = dict(line.partition(b":")[::2] for line in head.lower().split(b"\r\n"))
                body = json.loads(await reader.readexactly(int(lines[b"content-length"])))
                number, key = body.get("id", 0), lines.get(b"ce-partitionkey")
                times[number] += 1
                status, wait = rule(body, times[number])
                await asyncio.sleep(wait)
                answers.value += 1
                seconds.value += wait
                if key is not None:
                    late.value += number <= last[key]
                    last[key] = number
                writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(converse, LOOPBACK, port, backlog=1000) as server:
            await server.serve_forever()

    asyncio.run(serve())
