"""A TCP proxy that can fall silent, be slow, or cut connections: what a network does."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from outbox_tasks.local.ports import LOOPBACK

AT_ONCE = 65_536

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for 0 seconds: the other side learns of the end by an error, and what was on its way is gone."""


class _Link:
    """One connection through the proxy."""

    def __init__(self, near: socket.socket, far: socket.socket, flowing: threading.Event) -> None:
        self.near, self.far, self.flowing = near, far, flowing
        self.muted = False
        self.open = 2
        """In how many directions it still forwards."""
        self._how = socket.SHUT_RDWR

    def reset(self) -> None:
        """End it by a reset, which is sent as the sockets are closed."""
        self._how = socket.SHUT_RD
        for one in (self.near, self.far):
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.cut()

    def cut(self) -> None:
        """End it. Closing alone would not wake the threads that read."""
        for one in (self.near, self.far):
            with suppress(OSError):
                one.shutdown(self._how)


class Proxy:
    """Forwards connections to a port of a host, until it is silenced."""

    def __init__(self, target: int, host: str = LOOPBACK) -> None:
        self.target = target
        """The port that new connections are led to."""
        self.delay = 0.0
        """Seconds that each packet takes longer."""
        self.refuses = False
        """Whether it closes each new connection at once."""
        self._host = host
        self._flowing = threading.Event()
        self._flowing.set()
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Nothing passes any more, on old connections and new ones, and none is closed."""
        self._flowing.clear()

    def mute(self) -> None:
        """On what is connected now no answer passes any more; what is asked does. New connections are as usual."""
        for link in self._all():
            link.muted = True

    def resume(self) -> None:
        """What has been held back goes on."""
        self._flowing.set()

    def forget(self) -> None:
        """What is connected now is silent for good, and isn't closed; new connections pass."""
        former, self._flowing = self._flowing, threading.Event()
        former.clear()
        self._flowing.set()

    def reset(self) -> None:
        """What is connected now is cut, and what was on its way is lost; new connections pass."""
        for link in self._all():
            link.reset()

    def close(self) -> None:
        """Nobody listens any more, and all connections are cut."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._all():
            link.cut()
            link.flowing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self) -> list[_Link]:
        with self._lock:
            return list(self._links)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuses:
                    raise ConnectionRefusedError
                far = socket.create_connection((self._host, self.target))
            except OSError:  # nobody is there just now
                near.close()
                continue
            link = _Link(near, far, self._flowing)
            with self._lock:
                self._links.add(link)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(link, source, target), daemon=True).start()

    def _forward(self, link: _Link, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(AT_ONCE):
                link.flowing.wait()
                if self.delay:
                    time.sleep(self.delay)
                if source is link.near or not link.muted:
                    target.sendall(data)
        link.cut()
        with self._lock:
            link.open -= 1
            if not link.open:
                self._links.discard(link)
                link.near.close()
                link.far.close()


def through(url: str, proxy: Proxy) -> str:
    """The same URL, by way of the proxy."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}{LOOPBACK}:{proxy.port}").geturl()
