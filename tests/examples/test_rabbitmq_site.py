"""An application with Celery on RabbitMQ: the few lines of docs/how-to/rabbitmq.md let it send a task and an event if,
and only if, the transaction commits. There is no Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from outbox_tasks.local.relay import outbox_tasks_argv
from tests.conftest import eventually
from tests.contract.counterparts.rabbitmq import Counterpart
from tests.contract.counterparts.rabbitmq import rabbit as rabbit
from tests.examples.conftest import Project
from tests.examples.templates import adopt
from tests.matrix import ROOT

PAGE = ROOT / "docs/how-to/rabbitmq.md"
HEADING = "In an application that is on RabbitMQ already"

SITE = {
    "shop.py": """\
from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

app = Celery("shop", broker="amqp://guest:guest@localhost:5672//")
engine = create_engine("postgresql://localhost/shop")
Session = sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    has_receipt: Mapped[bool] = mapped_column(default=False)


@app.task
def send_receipt(id: int) -> None:
    with Session.begin() as session:
        session.get_one(Order, id).has_receipt = True
""",
    "orders.py": """\
from shop import Order, Session, send_receipt


def place(id: int, fails: bool = False) -> None:
    order = Order(id=id)
    with Session.begin() as session:
        session.add(order)
        send_receipt.delay(order.id)
        if fails:
            raise ValueError
""",
    "web.py": """\
from contextlib import suppress

from orders import place

with suppress(ValueError):
    place(1, fails=True)
place(2)
""",
}


@pytest.fixture
def project(tmp_path: Path, database: str, rabbit: Counterpart) -> Iterator[Project]:
    """The application with an outbox."""
    broker = urlsplit(rabbit.broker).netloc.rpartition("@")[2]
    ours = urlsplit(database)._replace(scheme="postgresql+psycopg").geturl()
    for name, text in SITE.items():
        text = text.replace("postgresql://localhost/shop", ours).replace("localhost:5672", broker)
        (tmp_path / name).write_text(text)
    adopt(tmp_path, HEADING, PAGE, rabbitmq=broker)
    made = Project(tmp_path, tmp_path, {"OUTBOX_DATABASE_URL": database})
    made.run(*outbox_tasks_argv("init"))
    yield from made.used()


def test_a_few_lines_let_the_site_send_what_it_commits(project: Project, rabbit: Counterpart) -> None:
    project.run(project.python, "-c", "from shop import Base, engine; Base.metadata.create_all(engine)")
    project.worker("shop", "-B")
    project.run(project.python, "web.py")
    eventually(lambda: project.rows("SELECT id, has_receipt FROM orders") == [(2, True)])
    eventually(lambda: [event.body for event in rabbit.raw("placed")] == [b'{"id":2}'])
    assert sorted(project.rows("SELECT event_type, state FROM outbox_all")) == [
        ("order.placed", "sent"),
        ("shop.send_receipt", "sent"),
    ]
