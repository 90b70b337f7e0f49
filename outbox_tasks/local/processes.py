"""Child processes: started, watched and ended.

- Each has a session of its own: Ctrl-C in the terminal reaches only us, and we decide the order of their ends.
- A shell beside each ends it if we are killed, even by `kill -9`.
- What it writes goes to a file, where we read it: no thread of ours, and no full pipe on which it would wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

from outbox_tasks.local.errors import HasEnded, NotStarted


class Child(subprocess.Popen[bytes]):
    """A running child process. Make one with `Child.start`."""

    name: str
    argv: Sequence[str]
    log: Path
    options: dict[str, Any]
    """With which the same can be started again."""
    stop_signal = signal.SIGTERM
    stop_timeout: float = 10
    _watcher: subprocess.Popen[bytes]
    _asked = _ended = False
    _read_up_to = 0

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        stop_signal: signal.Signals = stop_signal,
        stop_timeout: float = stop_timeout,
        user: int | None = None,
    ) -> Self:
        """Start `argv` as `name`.

        `env` is added to our own environment. The output goes to the file `log`; without one, to a file that goes with
        the `Child`. `user` is the number of the user and group that it runs as.
        """
        as_user: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        if log:
            log.touch(0o600)  # nobody else may read it
        with log.open("ab") if log else NamedTemporaryFile(prefix="outbox-output-", delete=False) as output:
            child = cls(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd,
                env={**os.environ, **(env or {})}, start_new_session=True, **as_user,
            )  # fmt: skip
        child.name, child.argv, child.log = name, argv, Path(output.name)
        child.stop_signal, child.stop_timeout = stop_signal, stop_timeout
        child.options = {"env": env or {}, "cwd": cwd, "log": log, "stop_timeout": stop_timeout}
        child._watcher = end_with_us(child.pid)
        if log is None:
            weakref.finalize(child, child.log.unlink, missing_ok=True)
        return child

    @property
    def alive(self) -> bool:
        return self.poll() is None

    def kill(self) -> None:
        """`kill -9` of the process itself. Its own children live on until `stop()`."""
        super().kill()
        self.wait()

    def ask_to_stop(self) -> None:
        """Send the stop signal and don't wait: to stop several at once, ask each, then `stop()` each."""
        if not self._asked:
            self._asked = True
            self.send_signal(self.stop_signal)

    def stop(self) -> int:
        """End it, gently first; return its exit code. An exception on the way, such as Ctrl-C, ends it at once."""
        try:
            self.ask_to_stop()
            with suppress(subprocess.TimeoutExpired):
                self.wait(self.stop_timeout)
        finally:
            self.end()
        return self.wait()

    def end(self) -> None:
        """SIGKILL to the process group: to what is left of the child and of its own children."""
        if self._ended:
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: no permission for a group of zombies
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._ended = True  # the group is never signalled again: its number may be reused
        with suppress(OSError):
            self._watcher.communicate(b"released\n")

    def check(self) -> None:
        """Raises `HasEnded` if it has ended."""
        if not self.alive:
            raise HasEnded(name=self.name, code=self.returncode, tail="\n" + self.tail())

    def tail(self, count: int = 20) -> str:
        """The last lines that it wrote."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, count)).rstrip()

    def new_lines(self) -> Iterator[str]:
        """The lines that it wrote since this was last called."""
        with self.log.open("rb") as lines:
            lines.seek(self._read_up_to)
            for line in lines:
                if not line.endswith(b"\n"):  # the rest is still to come
                    break
                self._read_up_to += len(line)
                yield line.decode(errors="replace").rstrip("\r\n")

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until one of its lines has `text`. Raises `NotStarted`."""
        deadline = time.monotonic() + timeout
        while True:
            alive = self.alive  # asked first: what it writes last is read too
            if text in self.log.read_text(errors="replace"):
                return
            if not alive or time.monotonic() > deadline:
                within = f" within {timeout:g} s" if alive else f", and ended with exit code {self.returncode}"
                raise NotStarted(name=self.name, reason=f"it did not say {text!r}{within}", tail="\n" + self.tail())
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.stop()


def end_with_us(group: int) -> subprocess.Popen[bytes]:
    """A shell that ends a process group when we have died. It reads from a pipe that only we hold; a line says that
    there is nothing left to end.

    It ignores the signals that may end us, and it is in a session of its own. PostgreSQL frees its shared memory at
    SIGQUIT.
    """
    script = 'trap \'\' HUP INT TERM; read -r _ && exit; kill -s QUIT -- "-$1"; sleep 3; kill -s KILL -- "-$1"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "watcher", str(group)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
    )  # fmt: skip


class Group(list[Child]):
    """Children that are stopped together, the last started first."""

    def start(self, name: str, argv: Sequence[str], **options: Any) -> Child:
        """`Child.start`, and the child belongs to this group."""
        self.append(Child.start(name, argv, **options))
        return self[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop each in turn. An exception on the way, such as a second Ctrl-C, ends the rest at once."""
        try:
            for child in reversed(self):
                child.stop()
        finally:
            for child in reversed(self):
                child.end()


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does: everything is cleared up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
