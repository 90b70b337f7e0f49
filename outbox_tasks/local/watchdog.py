"""A small process that outlives its parent just long enough to end the parent's children.

No signal handler survives `kill -9`, but the end of a pipe does: the parent writes here what it starts and
what has ended, and when the pipe closes, what is left is killed and throw-away directories are removed. This
also reaches grandchildren in the process group (a worker's pool), works on every POSIX system, and unlike
PR_SET_PDEATHSIG does not depend on which thread started the child.

Run by path with `python -I -S`: it imports nothing of the package, so that it starts in milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

GRACE_SECONDS = 3.0


def watch(lines: Iterable[str]) -> tuple[dict[int, int], list[str]]:
    """Read until the parent is gone; return the children left (group and signal) and directories left."""
    children: dict[int, int] = {}
    directories: list[str] = []
    for line in lines:
        verb, fact = line.rstrip("\n").split(" ", 1)
        match verb:
            case "+child":
                group, number = fact.split()
                children[int(group)] = int(number)
            case "-child":
                children.pop(int(fact), None)
            case "+directory":
                directories.append(fact)
            case "-directory":
                directories.remove(fact)
    return children, directories


def end(children: dict[int, int]) -> None:
    """Send each group its signal, and after a short grace SIGKILL."""
    for group, number in children.items():
        with suppress(OSError):
            os.killpg(group, number)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(map(_exists, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for group in children:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def main() -> None:
    # Only the end of the pipe ends us: whoever stops the parent by its group must not stop us first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    children, directories = watch(sys.stdin)
    end(children)
    if directories:
        import shutil

        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
