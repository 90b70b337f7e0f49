"""What the tests do in processes of their own: see `processes`. No client is imported here, nor what imports one."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence

from outbox_tasks.model import Result
from tests.contract.messages import loaded, message, sent_by


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


def sent_with(cases: Sequence[tuple[str, str]], seconds: float) -> list[list[tuple[str, str | None]]]:
    """What became of three messages to each URL, with Google's default credentials in this file."""
    found = []
    for url, default in cases:
        os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        if default:
            os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = default
        publisher = loaded(url, send_timeout=seconds)
        started = time.monotonic()
        outcomes = publisher.publish([message(0), message(1, headers={"n": 5}), message(2)])
        assert time.monotonic() - started < seconds + 0.5
        publisher.close()
        found.append([(str(outcome.result), outcome.code) for outcome in outcomes])
    return found


def sent_before_and_after_it_was_mended(url: str, right: str, used: str) -> list[Result]:
    """What became of a message before and after the file `used` was replaced by another."""
    publisher = loaded(url, send_timeout=5)
    [before] = publisher.publish([message()])
    shutil.copy(right, used)
    [after] = publisher.publish([message()])
    publisher.close()
    return [before.result, after.result]
