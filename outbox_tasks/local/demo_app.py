"""The demo's order application: it uses SQLAlchemy, and publishes in its own transactions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Self

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox_tasks.database.engine import engine_url
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings

WRITERS = 4
RATE = 500.0
"""Orders a second at most: the relay needs a processor too."""

AT_LEAST = 4.0
"""Seconds that taking the orders lasts at least: a worker is killed in the middle."""

DESTINATION = "orders"
CUSTOMERS = ("Ada", "Barbara", "Edsger", "Grace", "Jim", "Leslie", "Pat", "Tony")

# No publisher takes headers that are not text. A writer in another language may do this by mistake.
UNDELIVERABLE = """SELECT {schema}.outbox_publish(
    'order.created', jsonb_build_object('id', CAST(:order AS bigint)), key => 'order:' || :order,
    destination => '{destination}', headers => '{{"priority": 1}}')"""


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """An order."""

    __tablename__ = "demo_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class PaymentDeclined(Exception):
    """Why the application rolls an order back."""


class Fate(Enum):
    """What will become of an order."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDELIVERABLE = "committed, with a message that can never be delivered"


class Shop:
    """Takes orders in several threads, and notes what became of each."""

    def __init__(self, settings: Settings, orders: int) -> None:
        self.committed: dict[str, float] = {}
        """Unix time just before the commit, by the message's id."""
        self.rolled_back: set[str] = set()
        self.undeliverable = ""
        self._schema = settings.database_schema
        self._outbox = Outbox(settings)
        self._engine = create_engine(
            engine_url(str(settings.database_url)),
            pool_size=WRITERS,
            execution_options={"schema_translate_map": {None: self._schema}},
        )
        self._fates = _fates(orders)
        self._closing = threading.Event()
        self._threads = ThreadPoolExecutor(WRITERS, "order")
        self._writing: list[Future[None]] = []

    def open(self) -> None:
        """Begin to take orders."""
        Base.metadata.create_all(self._engine)
        interval = max(AT_LEAST / len(self._fates), 1 / RATE)
        start = time.monotonic()
        self._writing = [
            self._threads.submit(self._take, self._fates[n::WRITERS], start + n * interval, WRITERS * interval)
            for n in range(WRITERS)
        ]

    @property
    def done(self) -> bool:
        """Whether all orders are taken. Raises the error that stopped a thread."""
        return all(writing.done() and writing.result() is None for writing in self._writing)

    def close(self) -> None:
        """Take no more orders."""
        self._closing.set()
        self._threads.shutdown()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, fates: Sequence[Fate], first: float, interval: float) -> None:
        for n, fate in enumerate(fates):
            if self._closing.wait(max(0.0, first + n * interval - time.monotonic())):
                return
            self._order(fate)

    def _order(self, fate: Fate) -> None:
        order = Order(customer=random.choice(CUSTOMERS), cents=random.randint(100, 100_000))
        message_id = ""
        try:
            with Session(self._engine) as session, session.begin():
                session.add(order)
                session.flush()
                message_id = self._publish(session, order, fate)
                if fate is Fate.ROLLED_BACK:
                    raise PaymentDeclined
                before_commit = time.time()
        except PaymentDeclined:
            self.rolled_back.add(message_id)
        else:
            self.committed[message_id] = before_commit

    def _publish(self, session: Session, order: Order, fate: Fate) -> str:
        if fate is Fate.UNDELIVERABLE:
            sql = UNDELIVERABLE.format(schema=self._schema, destination=DESTINATION)
            self.undeliverable = str(session.scalar(text(sql), {"order": str(order.id)}))
            return self.undeliverable
        payload = {"id": order.id, "customer": order.customer, "cents": order.cents}
        return str(self._outbox.publish(session, "order.created", payload, key=f"order:{order.id}"))


def _fates(orders: int) -> list[Fate]:
    """As many committed ones as `orders`, one of them with a bad message, and a tenth more rolled back."""
    fates = [Fate.COMMITTED] * (orders - 1) + [Fate.ROLLED_BACK] * max(1, orders // 10) + [Fate.UNDELIVERABLE]
    random.shuffle(fates)
    return fates
