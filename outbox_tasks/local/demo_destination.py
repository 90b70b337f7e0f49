"""A destination that fails sometimes: a proxy before a Redis server that drops a share of the requests."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress

from outbox_tasks.local.ports import LOOPBACK


class FailingProxy:
    """Hands the publishers' requests on to Redis, in threads that end with the process."""

    def __init__(self, port: int) -> None:
        self.failures = 0
        self.hold = False
        """Set it to be slow with the next request: so its sender can be killed meanwhile."""
        self._redis = (LOOPBACK, port)
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            threading.Thread(target=self._requests, args=(near,), daemon=True).start()

    def _requests(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(self._redis) as far:
            threading.Thread(target=_answers, args=(far, near), daemon=True).start()
            while request := near.recv(1 << 20):
                time.sleep(0.002)  # as over a network
                if b"XADD" in request:
                    if self.hold:
                        self.hold = False
                        time.sleep(1.0)
                    if random.random() < 0.06:
                        self.failures += 1
                        near.shutdown(socket.SHUT_RDWR)
                        # How much of the request reaches Redis. If all of it does, only the answer is lost: nobody
                        # knows whether the messages have arrived.
                        far.sendall(request[: int(len(request) * random.choice((0.0, 0.0, 0.0, 0.5, 1.0)))])
                        break
                far.sendall(request)
            far.shutdown(socket.SHUT_WR)


def _answers(far: socket.socket, near: socket.socket) -> None:
    with suppress(OSError):
        while answer := far.recv(1 << 20):
            near.sendall(answer)
        near.shutdown(socket.SHUT_RDWR)
