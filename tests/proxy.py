"""A TCP proxy that can fall silent: what a network does when it loses a connection and tells nobody."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import psutil

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedPostgres


class Proxy:
    """Forwards connections to a port of this host, until it is silenced."""

    def __init__(self, target: int) -> None:
        self.target = target
        """The port that new connections are led to."""
        self.delay = 0.0
        """Seconds that each packet takes longer."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._muted: set[socket.socket] = set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Nothing passes any more, on old connections and new ones, and none is closed."""
        self._flowing.clear()

    def mute(self) -> None:
        """On what is connected now no answer passes any more; what is asked does. New connections are as usual."""
        self._muted = set(self._open)

    def resume(self) -> None:
        """What has been held back goes on."""
        self._flowing.set()

    def forget(self) -> None:
        """What is connected now is silent for good, and isn't closed; new connections pass."""
        former, self._flowing = self._flowing, threading.Event()
        former.clear()
        self._flowing.set()

    def close(self) -> None:
        """Nobody listens any more, and all connections are cut."""
        # Closing alone does not wake the thread that accepts.
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._flowing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((LOOPBACK, self.target))
            except OSError:  # nobody is there just now
                near.close()
                continue
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, target, self._flowing), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, flowing: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                flowing.wait()
                if self.delay:
                    time.sleep(self.delay)
                if source not in self._muted or source.getpeername()[1] != self.target:
                    target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def frozen(server: EmbeddedPostgres) -> Iterator[None]:
    """A server of which no process does anything, and which its host still takes connections and data for."""
    processes: list[psutil.Process] = []
    try:
        # The first one first: it makes no more of them.
        postmaster = psutil.Process(server.pid)
        processes.append(postmaster)
        postmaster.suspend()
        for process in postmaster.children(recursive=True):
            processes.append(process)
            process.suspend()
        yield
    finally:
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.resume()
