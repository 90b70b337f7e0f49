"""Our end of the pipe to the watchdog process, which is started with the first child."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_lock = threading.Lock()
_watchdog: subprocess.Popen[bytes] | None = None
_pipe = -1


def guard_child(group: int, death_signal: int) -> None:
    """From now on, that process group gets the signal, and SIGKILL soon after, when we die."""
    _tell(f"+child {group} {death_signal}")


def release_child(group: int) -> None:
    """It has ended: its number may belong to somebody else soon."""
    _tell(f"-child {group}")


def guard_directory(directory: Path) -> None:
    """From now on, that directory is removed when we die."""
    _tell(f"+directory {directory}")


def release_directory(directory: Path) -> None:
    """It has been removed."""
    _tell(f"-directory {directory}")


def _tell(line: str) -> None:
    with _lock:
        if _watchdog is None:
            _start()
        os.write(_pipe, line.encode("utf-8", "surrogateescape") + b"\n")  # short: atomic on a pipe


def _start() -> None:
    global _pipe, _watchdog
    theirs, _pipe = os.pipe()
    try:
        _watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(theirs)


def _close() -> None:
    """At our orderly end: let the watchdog end what was left behind, and wait until it has."""
    global _watchdog
    if _watchdog is not None:
        os.close(_pipe)
        with suppress(subprocess.TimeoutExpired):
            _watchdog.wait(10)
        _watchdog = None


def _forget() -> None:
    """In a fork of us: let go of the pipe, or it would stay open for as long as the fork lives."""
    global _lock, _watchdog
    _lock = threading.Lock()
    if _watchdog is not None:
        os.close(_pipe)
        _watchdog.returncode = 0  # not ours to wait for
        _watchdog = None


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)
