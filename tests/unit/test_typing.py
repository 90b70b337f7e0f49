"""An application's own module passes strict mypy, without our plugins: what has a default may be left out.

Pyright goes by the same rule (`dataclass_transform`), and also wants the default of a field by its keyword.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

from outbox_tasks import settings
from outbox_tasks.settings import destination, operation

CACHE = Path(__file__).parents[2] / ".mypy_cache" / "applications"
"""What mypy knows of libraries that have not changed: with it a check takes a twentieth of its time."""

SAMPLE = """
from datetime import timedelta
from typing import Any
from uuid import UUID

from outbox_tasks import Inbox, Message, Outbox
from outbox_tasks.settings.destination import Destination, Route
from outbox_tasks.settings import Settings
from outbox_tasks.signals import breaker_opened, claimed, dead_letter, key_blocked, settled, stale
from outbox_tasks.web import Page
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from wsgiref.types import WSGIApplication

orders = Destination(url="kafka://h/orders")
mails = Destination(url="https://h", max_attempts=3, concurrency=2, rate_limit=1.5, send_timeout=2, claim_check=None)
settings = Settings(
    database_url="postgresql://h/d", broker_url="redis://h/0", destinations={"orders": orders}, max_in_flight=10,
    routes={"order.*": Route(to=["orders"], latest=True)}, stale_after=60,
)
plain = Settings()
fewer = settings.replace(max_in_flight=5)
message = Message("order.created", {"id": 1}, key="a", delay=timedelta(seconds=3))
outbox = Outbox(settings)
Starlette().mount("/outbox", Page(outbox).asgi)
under_wsgi: WSGIApplication = Page(outbox).wsgi


def publish(session: Session) -> UUID:
    outbox.publish_many(session, [message])
    return outbox.publish(session, "order.created", {"id": 42}, key="order:42", delay=5)


def once(session: Session, id: UUID) -> bool:
    return Inbox("billing").first(session, id)


@dead_letter.connect
def tell(sender: Any, destination: str, message_id: str, **_: Any) -> None:
    print(destination, message_id)


@settled.connect(weak=False)
def count(sender: Any, seconds: float, **_: Any) -> None: ...


for signal in (breaker_opened, claimed, key_blocked, stale):
    signal.connect(tell, weak=False)

tell(None, 1, "2")
"""


def test_what_applications_write_passes_strict_mypy(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={CACHE}", str(sample)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=280)
    [mistake, _] = done.stdout.splitlines()
    assert 'Argument 2 to "tell" has incompatible type "int"; expected "str"' in mistake, done.stdout


def test_every_default_is_given_by_its_keyword() -> None:
    for module in (destination, settings, operation):
        assert not re.findall(r": .* = Field\((?!default|\w+=|\))", inspect.getsource(module))
