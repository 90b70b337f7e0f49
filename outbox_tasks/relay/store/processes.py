"""Processes, by the names that they leave on the rows they hold: host/space:pid."""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path
from uuid import uuid4


def holder() -> str:
    """The name of this process."""
    return f"{socket.gethostname()}/{_space()}:{os.getpid()}"


@cache
def _space() -> str:
    """Where a process number means the same process: containers may share a hostname, but each has its own numbers."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        seen = booted + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        seen = str(uuid4())  # of this process alone, and of those that it forks
    return hashlib.sha256(seen.encode()).hexdigest()[:6]


def neighbourhood() -> str:
    """How the names of all processes begin that this one can see."""
    return holder().rpartition(":")[0] + ":"


def is_gone(name: str) -> bool:
    """Whether the process of this name has ended. Ask only for names in the `neighbourhood`."""
    try:
        os.kill(int(name.rpartition(":")[2]), 0)
    except OSError as error:  # if we may not ask, it runs as somebody else
        return isinstance(error, ProcessLookupError)
    return False
