"""Child processes that end in time, in order, and never outlive us.

- Each has a session of its own: Ctrl-C in the terminal reaches only us, and we decide the order.
- A watcher beside each ends it if we are killed, even by `kill -9`.
- A stop escalates: stop signal, SIGTERM, SIGKILL to the whole process group.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

from outbox_tasks.local.errors import ChildNotReady, CommandNotFound
from outbox_tasks.local.watcher import Watcher, end_with_us

OnLine = Callable[[str, str], None]
"""Called with the child's name and one line of its output, in a thread of that child."""

TERM_TIMEOUT = 5.0
TAIL_LINES = 500

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Child:
    """A running child process. Make one with `Child.start`."""

    name: str
    argv: tuple[str, ...]
    stop_signal: signal.Signals
    stop_timeout: float
    log: Path | None
    on_line: OnLine | None
    _process: subprocess.Popen[bytes]
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _news: threading.Condition = field(default_factory=threading.Condition)
    _reader: threading.Thread | None = None
    _watcher: Watcher | None = None
    _asked: bool = False
    _ended: bool = False

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        on_line: OnLine | None = None,
        log: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        stop_timeout: float = 10.0,
        death_signal: signal.Signals = signal.SIGKILL,
        user: int | None = None,
    ) -> Self:
        """Start `argv` as `name`.

        `env` is added to our own environment. The output goes to the file `log`, or else line by line to
        `on_line`; `tail()` has the last lines. The child gets `death_signal` if we die. `user` is the number of the
        user and group that it runs as.
        """
        full_env = {**os.environ, **(env or {})}
        command = shutil.which(argv[0], path=full_env.get("PATH"))
        if command is None:
            raise CommandNotFound(name=name, command=argv[0])
        as_user: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with nullcontext(subprocess.PIPE) if log is None else open(log, "ab", opener=_private) as output:
            process = subprocess.Popen(
                [command, *argv[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=full_env,
                cwd=cwd, start_new_session=True, **as_user,
            )  # fmt: skip
        child = cls(name, tuple(argv), stop_signal, stop_timeout, log, on_line, process)
        try:
            child._watcher = end_with_us(process.pid, death_signal.name.removeprefix("SIG"))
            if process.stdout is not None:
                child._reader = threading.Thread(target=child._read, args=(process.stdout,), daemon=True)
                child._reader.start()
        except BaseException:
            child.end()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """To the process itself, not its group; nothing happens if it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """`kill -9` of the process itself. Its own children live on until `stop()`."""
        self.send_signal(signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. Raises `TimeoutError`."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} has not ended within {timeout:g} s") from None

    def ask_to_stop(self) -> None:
        """Send the stop signal and don't wait: to stop several at once, ask each, then `stop()` each."""
        if not self._asked and self.alive:
            self._asked = True
            self.send_signal(self.stop_signal)

    def stop(self) -> int:
        """End it, gently first; return its exit code. An exception on the way, such as Ctrl-C, ends it at once."""
        try:
            self.ask_to_stop()
            if not self._ends_within(self.stop_timeout) and self.stop_signal != signal.SIGTERM:
                self.send_signal(signal.SIGTERM)
                self._ends_within(TERM_TIMEOUT)
        finally:
            self.end()
        return self._process.wait()

    def end(self) -> None:
        """SIGKILL to the process group: to what is left of the child and of its own children."""
        if self._ended:
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: no permission for a group of zombies
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._ended = True  # the group is never signalled again: its number may be reused
        if self._watcher is not None:
            self._watcher.release()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(2)

    def tail(self, count: int = 20) -> str:
        """The last lines that it wrote."""
        if self.log is not None:
            with suppress(OSError), self.log.open(errors="replace") as lines:
                return "".join(deque(lines, count)).rstrip()
        with self._news:
            return "\n".join(list(self._lines)[-count:])

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until one of its lines has `text`."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not self._said(text) and self.alive and time.monotonic() < deadline:
                self._news.wait(0.1)  # when it ends, nobody notifies us
        if not self.alive and self._reader is not None:
            self._reader.join(1)
        if not self._said(text):
            raise ChildNotReady(name=self.name, text=text, seconds=timeout, tail=self.tail())

    def _said(self, text: str) -> bool:
        if self.log is not None:
            return text in self.log.read_text(errors="replace")
        with self._news:
            return any(text in line for line in self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            self.wait(seconds)
        return not self.alive

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\r\n")
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()
                if self.on_line is not None:
                    try:
                        self.on_line(self.name, line)
                    except Exception:  # reading must go on, or the child blocks on a full pipe
                        logger.exception("a line of %s was not taken", self.name)


def _private(path: str, flags: int) -> int:
    """Opens a log that only we may read."""
    return os.open(path, flags, 0o600)


class Group:
    """Children that are stopped together, the last started first."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(self, name: str, argv: Sequence[str], **options: Any) -> Child:
        """`Child.start`, and the child belongs to this group."""
        self._children.append(Child.start(name, argv, **options))
        return self._children[-1]

    def stop_all(self) -> None:
        """Stop each in turn. An exception on the way, such as a second Ctrl-C, ends the rest at once."""
        try:
            while self._children:
                self._children[-1].stop()
                self._children.pop()
        finally:
            for child in reversed(self._children):
                child.end()
            self._children.clear()

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._children))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()


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
