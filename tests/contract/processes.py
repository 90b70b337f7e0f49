"""What a test does in a process of its own. Each is a fork of one that has imported what they all need, and no client:
the imports would take more of the processor's time than the tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.contract.tasks"])


def in_a_process(task: Callable[..., Any], *args: Any, log: Path, env: Mapping[str, str] | None = None) -> Any:
    """What the task returns. `env` is its whole environment, and the file `log` gets all that it writes."""
    with ProcessPoolExecutor(1, SERVER, _prepare, (log, env)) as pool:
        return pool.submit(task, *args).result(110)


def _prepare(log: Path, env: Mapping[str, str] | None) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
