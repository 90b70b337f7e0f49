"""What tests do in processes of their own. Each is a fork of one that has imported what they all need, and no client:
the imports would take more of the processor's time than the tests. So nothing here imports a client."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.contract.messages import loaded, message, sent_by

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


def sent_in_forks(url: str) -> list[str]:
    """What became of four messages: one is sent by a process, two by its forks, and one by itself again."""
    publisher = loaded(url, send_timeout=11)
    reader, writer = os.pipe()

    def send(number: int) -> None:
        os.write(writer, f"{number} {sent_by(publisher, message(number))[0].result}\n".encode())

    send(0)
    for number in (1, 2):
        child = multiprocessing.get_context("fork").Process(target=send, args=(number,))
        child.start()
        child.join(25)
        child.kill()
    send(3)
    publisher.close()
    os.close(writer)
    with os.fdopen(reader) as told:
        return told.read().splitlines()


def sent_with(cases: Sequence[tuple[str, str]], seconds: float, *mended: str) -> list[list[tuple[str, str | None]]]:
    """What became of three messages to each URL, with Google's default credentials in this file. `mended`: a file that
    is copied to another one then, and what becomes of the messages that are sent to the last URL once more."""
    found = []
    for url, default in cases:
        os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        if default:
            os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = default
        publisher = loaded(url, send_timeout=seconds)
        started = time.monotonic()
        outcomes = publisher.publish([message(0), message(1, headers={"n": 5}), message(2)])
        assert time.monotonic() - started < seconds + 0.5
        found.append([(str(outcome.result), outcome.code) for outcome in outcomes])
        if mended and (url, default) == cases[-1]:
            shutil.copy(*mended)
            found.append([(str(outcome.result), outcome.code) for outcome in publisher.publish([message(3)])])
        publisher.close()
    return found
