"""The demo's order application, which publishes in its own transactions, and its destination, which fails sometimes."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, create_engine, text

from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings

ORDERS = Table("demo_orders", MetaData(), Column("id", BigInteger, primary_key=True))

# No publisher takes headers that are not text. A writer in another language may do this by mistake.
BAD_MESSAGE = text("""SELECT outbox_publish('order.created', '{}', destination => 'orders', headers => '{"n": 1}')""")


class PaymentDeclined(Exception):
    """Why the application rolls an order back."""


class Shop:
    """Takes orders, 500 in a second at most, and notes the messages of those that it committed or rolled back."""

    def __init__(self, settings: Settings, orders: int) -> None:
        self.orders = orders
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self.closing = threading.Event()
        self._outbox = Outbox(settings)
        self._engine = create_engine(engine_url(str(settings.database_url)))

    def take_orders(self) -> None:
        """Take all of them, and roll back a tenth more. The message of the first can't be delivered."""
        ORDERS.create(self._engine)
        declined = [True] * max(1, self.orders // 10) + [False] * (self.orders - 1)
        random.shuffle(declined)
        pause = max(4 / len(declined), 1 / 500)  # four seconds at least: a worker is killed in the middle
        start = time.monotonic()
        with self._engine.begin() as connection:
            self.committed.add(str(connection.scalar(BAD_MESSAGE)))
        for order, is_declined in enumerate(declined):
            if not self.closing.wait(max(0.0, start + order * pause - time.monotonic())):
                with suppress(PaymentDeclined), self._engine.begin() as connection:
                    self._take(connection, order, is_declined)
        self._engine.dispose()

    def _take(self, connection: Connection, order: int, is_declined: bool) -> None:
        connection.execute(ORDERS.insert(), {"id": order})
        id = str(self._outbox.publish(connection, "order.created", {"id": order}, key=f"order:{order}"))
        (self.rolled_back if is_declined else self.committed).add(id)
        if is_declined:
            raise PaymentDeclined


class FailingProxy:
    """A proxy before a Redis server, which drops a share of the requests. Its threads end with the process."""

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
