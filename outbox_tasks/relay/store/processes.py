"""Processes, by the names that they leave on the rows they hold: host/space:pid."""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path
from uuid import uuid4


def holder(pid: int | None = None) -> str:
    """The name of this process, or of another one on this host."""
    return f"{socket.gethostname()}/{_space()}:{pid or os.getpid()}"


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
    return not alive(int(name.rpartition(":")[2]))


def alive(pid: int) -> bool:
    """Whether this host has a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
