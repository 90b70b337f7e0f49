"""What a test does in a process of its own. Each is a fork of one that has imported what they all need, and no client:
the imports would take more of the processor's time than the tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.contract.tasks"])


def in_a_process(task: Callable[..., Any], *args: Any, log: Path, env: Mapping[str, str] | None = None) -> Any:
    """What the task returns. `env` is its whole environment, and the file `log` gets all that it writes."""
    answer, writer = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_run, args=(writer, log, env, task, args))
    process.start()
    writer.close()
    try:
        assert answer.poll(110), f"it did not end: {_text(log)}"
        return answer.recv()
    except EOFError:
        raise AssertionError(f"it ended without an answer: {_text(log)}") from None
    finally:
        answer.close()
        process.kill()
        process.join()
        process.close()


def _run(
    answer: Connection, log: Path, env: Mapping[str, str] | None, task: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    answer.send(task(*args))


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else "it wrote nothing"
