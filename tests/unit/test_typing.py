"""An application's own module passes strict mypy, without our plugins, and strict Pyright, which knows no types of
Celery: what has a default may be left out. Pyright also wants the default of a field by its keyword.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from outbox_tasks import settings
from outbox_tasks.settings import destination, operation

ROOT = Path(__file__).parents[2]
PYRIGHT = ROOT / "node_modules" / "pyright" / "index.js"

CACHE = ROOT / ".mypy_cache" / "applications"
"""What mypy knows of libraries that have not changed: with it a check takes a twentieth of its time."""

SAMPLE = '''
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import Celery  # type: ignore[import-untyped] # pyright: ignore[reportMissingTypeStubs]
from outbox_tasks import Inbox, LeasedMessage, Message, Outbox, OutboxError, Outcome
from outbox_tasks.destinations import Publisher
from outbox_tasks.errors import NotInTransaction
from outbox_tasks.settings.destination import Destination, Route
from outbox_tasks.settings import Settings
from outbox_tasks.signals import dead_letter
from outbox_tasks.testing import OutboxProbe
from outbox_tasks.web import Page
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from wsgiref.types import WSGIApplication

orders = Destination(url="kafka://h/orders")
mails = Destination(url="https://h", max_attempts=3, concurrency=2, rate_limit=1.5, send_timeout=2, claim_check=None)
settings = Settings(
    database_url="postgresql://h/d", broker_url="redis://h/0", destinations={"orders": orders}, singles=10,
    routes={"order.*": Route(to=["orders"], latest=True)}, stale_after=60,
)
fewer = settings.replace(singles=5)
message = Message("order.created", {"id": 1}, key="a", delay=timedelta(seconds=3))
app = Celery("shop")
outbox = Outbox(settings, celery=app)
outbox.install(app)
Starlette().mount("/outbox", Page(outbox).asgi)
under_wsgi: WSGIApplication = Page(outbox).wsgi
inbox = Inbox("billing")


def publish(session: Session) -> UUID:
    outbox.publish_many(session, [message])
    with outbox.capture(session), outbox.direct():
        outbox.apply_async(session, "shop.remind", (42,), countdown=60, confirm=True)
    try:
        outbox.cancel(session, UUID(int=1))
    except (NotInTransaction, OutboxError) as error:
        print(error.says)
    return outbox.publish(session, "order.created", {"id": 42}, key="order:42", delay=5)


async def publish_async(session: AsyncSession, connection: AsyncConnection) -> list[UUID]:
    taken_back: bool = await outbox.cancel(session, UUID(int=1))
    print(taken_back, await inbox.first(session, UUID(int=1)))
    return [outbox.publish(session, "a", 1), await outbox.publish(connection, "a", 1)]


@dead_letter.connect
def tell(sender: Any, destination: str, message_id: str, **_: Any) -> None:
    print(destination, message_id)


class Printer:
    """A publisher of one's own."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self.name = destination.name

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        return [Outcome.sent() for _ in messages]

    def close(self) -> None: ...


publisher: type[Publisher] = Printer


def test_publishes(outbox: OutboxProbe) -> None:
    outbox.assert_published("order.created", id=42, times=1)
    outbox.fail("orders", Outcome.retry("busy", "come back later"))
    print([seen.payload for seen in outbox.drain()], outbox.assert_task("shop.*", args=(1,)).name)


tell(None, 1, "2")
'''


def test_what_applications_write_passes_strict_mypy(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={CACHE}", str(sample)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=280)
    [mistake, _] = done.stdout.splitlines()
    assert 'Argument 2 to "tell" has incompatible type "int"; expected "str"' in mistake, done.stdout


def test_what_applications_write_passes_strict_pyright(tmp_path: Path) -> None:
    if not PYRIGHT.exists():
        pytest.skip("pyright is not installed: npm install pyright@1")
    (tmp_path / "sample.py").write_text(SAMPLE)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "include": ["sample.py"], "extraPaths": [str(ROOT)]})
    )
    argv = ["node", str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    [mistake] = json.loads(done.stdout)["generalDiagnostics"]
    assert mistake["message"].startswith('Argument of type "Literal[1]" cannot be assigned to parameter "destination"')


def test_every_default_is_given_by_its_keyword() -> None:
    for module in (destination, settings, operation):
        assert not re.findall(r": .* = Field\((?!default|\w+=|\))", inspect.getsource(module))
