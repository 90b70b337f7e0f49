"""Runs the Python of a page: block after block in one namespace, in a process of its own.

The process is a fork of one that has imported what nearly every page imports.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import multiprocessing
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import psycopg

IMPORTED = [
    "django.core.management",
    "outbox_tasks.cli",
    "outbox_tasks.outbox",
    "outbox_tasks.writing.inbox",
    "outbox_tasks.relay.store",
    "psycopg",
    "sqlalchemy.orm",
]
"""None of them reads the environment."""

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["celery", "kombu.transport.redis", *IMPORTED, "tests.docs.interpreter"])


class BlockFailed(Exception):
    """What a block said as it failed."""


class Interpreter:
    """A Python process in the page's directory, with the environment that its shell has by now."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self._connection, theirs = context.Pipe()
        self._output = directory / "python.out"
        self._process = context.Process(target=serve, args=(theirs, directory, env, self._output), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, text: str, place: str, line: int, seconds: float) -> None:
        """Raises `BlockFailed`."""
        self._connection.send((text, place, line))
        if not self._connection.poll(seconds):
            raise BlockFailed(f"{place}:{line}: it has not ended within {seconds:g} s\n{self.said()}")
        try:
            failure = self._connection.recv()
        except EOFError:
            failure = f"{place}:{line}: the process has ended"
        if failure:
            raise BlockFailed(f"{failure}\n{self.said()}")

    def said(self) -> str:
        """What it has printed last."""
        return self._output.read_text(errors="replace")[-5000:] if self._output.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()


def serve(connection: Connection, directory: Path, env: dict[str, str], output: Path) -> None:
    """Run what comes, until nothing comes any more."""
    opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    sys.path.insert(0, str(directory))
    module = sys.modules["page"] = ModuleType("page")
    module.__dict__["wait_until_sent"] = wait_until_sent
    with asyncio.Runner() as runner:
        while True:
            try:
                text, place, line = connection.recv()
            except EOFError:
                break
            try:
                run(text, place, line, module.__dict__, runner)
            except BaseException:
                connection.send(traceback.format_exc())
            else:
                connection.send("")
    sys.stdout.flush()
    os._exit(0)  # not in the way of threads and connections that the page has left


def wait_until_sent(event_type: str, count: int = 1) -> None:
    """A page calls this in hidden blocks. It asks the database: a command of ours takes a second of CPU each time."""
    deadline = time.monotonic() + 100
    with psycopg.connect(os.environ["OUTBOX_DATABASE_URL"], autocommit=True) as connection:
        query = b"SELECT count(*) FROM outbox_all WHERE event_type = %s AND state = 'sent'"
        while (found := connection.execute(query, [event_type]).fetchall()[0][0]) < count:
            assert time.monotonic() < deadline, f"{found} {event_type} of {count} were sent"
            time.sleep(0.2)


def compiled(text: str, place: str, line: int) -> Any:
    """With the line numbers of the page; `await` may stand outside of functions."""
    return compile("\n" * (line - 1) + text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def run(text: str, place: str, line: int, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    """Run one block."""
    code = compiled(text, place, line)
    result = eval(code, namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(_awaited(result))
    sys.stdout.flush()


async def _awaited(result: Any) -> None:
    await result
