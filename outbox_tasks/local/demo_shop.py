"""The demo's order application: it uses SQLAlchemy, and publishes in its own transactions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox_tasks.database.engine import engine_url
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings

COMMITTED, ROLLED_BACK, UNDELIVERABLE = "committed", "rolled back", "committed, and its message can't be delivered"
"""What will become of an order."""

# No publisher takes headers that are not text. A writer in another language may do this by mistake.
BAD_MESSAGE = text("""SELECT outbox_publish('order.created', jsonb_build_object('id', CAST(:order AS bigint)),
    key => 'order:' || :order, destination => 'orders', headers => '{"priority": 1}')""")


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """An order."""

    __tablename__ = "demo_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


class PaymentDeclined(Exception):
    """Why the application rolls an order back."""


class Shop:
    """Takes orders in a thread of its own, 500 in a second at most, and notes what became of each."""

    def __init__(self, settings: Settings, orders: int) -> None:
        self.committed: dict[str, float] = {}
        """Unix time just before the commit, by the message's id."""
        self.rolled_back: set[str] = set()
        self.undeliverable = ""
        self._outbox = Outbox(settings)
        self._engine = create_engine(engine_url(str(settings.database_url)))
        Base.metadata.create_all(self._engine)
        fates = [COMMITTED] * (orders - 1) + [ROLLED_BACK] * max(1, orders // 10) + [UNDELIVERABLE]
        random.shuffle(fates)
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._taking = self._thread.submit(self._take, fates)

    @property
    def done(self) -> bool:
        """Whether all orders are taken. Raises the error that stopped the thread."""
        return self._taking.done() and self._taking.result() is None

    def _take(self, fates: Sequence[str]) -> None:
        interval = max(4 / len(fates), 1 / 500)  # four seconds at least: a worker is killed in the middle
        start = time.monotonic()
        for n, fate in enumerate(fates):
            if self._closing.wait(max(0.0, start + n * interval - time.monotonic())):
                return
            self._order(fate)

    def _order(self, fate: str) -> None:
        id = ""
        try:
            with Session(self._engine) as session, session.begin():
                order = Order(cents=random.randint(100, 100_000))
                session.add(order)
                session.flush()
                if fate is UNDELIVERABLE:
                    id = self.undeliverable = str(session.scalar(BAD_MESSAGE, {"order": str(order.id)}))
                else:
                    payload = {"id": order.id, "cents": order.cents}
                    id = str(self._outbox.publish(session, "order.created", payload, key=f"order:{order.id}"))
                if fate is ROLLED_BACK:
                    raise PaymentDeclined
                before_commit = time.time()
        except PaymentDeclined:
            self.rolled_back.add(id)
        else:
            self.committed[id] = before_commit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.shutdown()
        self._engine.dispose()
