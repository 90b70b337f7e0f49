"""A shell beside each child process and each temporary directory: it clears up if we are killed."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from tempfile import TemporaryDirectory

_waiting: set[subprocess.Popen[bytes]] = set()


class Watcher:
    """Runs a shell command if we die before `release()`.

    No signal handler survives `kill -9`, but the end of a pipe does: the shell reads from a pipe that only we hold.
    Unlike PR_SET_PDEATHSIG this works on every POSIX system, and whichever thread starts it.
    """

    def __init__(self, command: str, *arguments: str) -> None:
        # In a session of its own, and it ignores Ctrl-C: nothing that ends us may end it first.
        script = f"trap '' HUP INT TERM; read -r _ || {{ {command}; }}"
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", script, "watcher", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        _waiting.add(self._shell)

    def release(self) -> None:
        """There is nothing left to clear up."""
        if self._shell in _waiting:
            _waiting.discard(self._shell)
            with suppress(OSError):
                self._shell.communicate(b"released\n")


def end_with_us(group: int, signal_name: str) -> Watcher:
    """If we die, the process group gets the signal (such as QUIT), and KILL soon after."""
    return Watcher('kill -s "$2" -- "-$1"; sleep 3; kill -s KILL -- "-$1"', str(group), signal_name)


class WatchedDirectory(TemporaryDirectory[str]):
    """A temporary directory that is removed even if we are killed, after our children."""

    def __init__(self, name: str) -> None:
        super().__init__(prefix=f"outbox-{name}-", ignore_cleanup_errors=True)
        self._watcher = Watcher('sleep 4; rm -rf -- "$1"', self.name)

    def cleanup(self) -> None:
        super().cleanup()
        self._watcher.release()


def _forget() -> None:
    """In a fork of us: close the pipes, or they would stay open for as long as the fork lives."""
    for shell in _waiting:
        assert shell.stdin is not None
        shell.stdin.close()
        shell.returncode = 0  # our parent waits for it
    _waiting.clear()


os.register_at_fork(after_in_child=_forget)
