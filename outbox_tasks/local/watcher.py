"""A shell beside each child process and each temporary directory: it clears up if we are killed."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from tempfile import TemporaryDirectory


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

    def release(self) -> None:
        """There is nothing left to clear up."""
        if self._shell.stdin is not None and not self._shell.stdin.closed:
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
