"""Child processes: started, watched and ended.

- Each has a session of its own: Ctrl-C in the terminal reaches only us, and we decide the order of their ends.
- A watcher beside each ends it if we are killed, even by `kill -9`.
- What it writes goes to a file, where we read it: no thread of ours, and no full pipe on which it would wait.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from outbox_tasks.local.errors import HasEnded, NotStarted
from outbox_tasks.local.watcher import Watcher, end_with_us


class Child(subprocess.Popen[bytes]):
    """A running child process. Make one with `Child.start`."""

    name: str
    argv: Sequence[str]
    log: Path
    started: float
    """By the monotonic clock."""
    options: dict[str, Any]
    """With which the same can be started again."""
    stop_signal = signal.SIGTERM
    stop_timeout: float = 10
    _watcher: Watcher
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
        death_signal: signal.Signals = signal.SIGKILL,
        user: int | None = None,
    ) -> Self:
        """Start `argv` as `name`.

        `env` is added to our own environment. The output goes to the file `log`. The child gets `death_signal` if we
        die. `user` is the number of the user and group that it runs as.
        """
        full_env = {**os.environ, **(env or {})}
        command = shutil.which(argv[0], path=full_env.get("PATH"))
        if command is None:
            reason = f"the command {argv[0]!r} is not on this machine; install it, or correct PATH"
            raise NotStarted(name=name, reason=reason, tail="(none)")
        as_user: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        path = log or Path(tempfile.mkstemp(prefix="outbox-output-")[1])
        with open(path, "ab", opener=_private) as output:
            child = cls(
                [command, *argv[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=full_env,
                cwd=cwd, start_new_session=True, **as_user,
            )  # fmt: skip
        child.name, child.argv, child.log, child.started = name, argv, path, time.monotonic()
        child.stop_signal, child.stop_timeout = stop_signal, stop_timeout
        child.options = {"env": env or {}, "cwd": cwd, "log": log, "stop_timeout": stop_timeout}
        child._watcher = end_with_us(child.pid, death_signal.name.removeprefix("SIG"))
        if log is None:
            weakref.finalize(child, path.unlink, missing_ok=True)
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
        self._watcher.release()

    def check(self) -> None:
        """Raises `HasEnded` if it has ended."""
        if not self.alive:
            raise HasEnded(name=self.name, code=self.returncode, tail="\n" + self.tail())

    def tail(self, count: int = 20) -> str:
        """The last lines that it wrote."""
        with suppress(OSError), self.log.open(errors="replace") as lines:
            return "".join(deque(lines, count)).rstrip()
        return ""

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


def _private(path: str, flags: int) -> int:
    """Opens a log that only we may read."""
    return os.open(path, flags, 0o600)


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
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does: everything is cleared up. Python ignores
    what is raised while it deletes an object, so then the signal comes again a little later."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "__del__":
                threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
