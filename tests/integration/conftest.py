"""Messages in the hands of a publisher, and commands at the test's outbox."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine

from outbox_tasks import Outbox, cli
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.takes import Batch
from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Role
from tests.claims import take_batch
from tests.conftest import MakeSettings, Rows
from tests.integration.archived import Archived
from tests.integration.browsing import Browser, Visit, visitor

Lease = Callable[..., Batch]
Command = Callable[..., Result]


@pytest.fixture
def outbox(settings: MakeSettings, rows: Rows) -> Outbox:
    """An application's outbox, which wakes nobody."""
    return Outbox(settings(nudge=False))


@pytest.fixture
def archived(rows: Rows, engine: Engine, schema: str) -> Archived:
    return Archived(engine, schema)


@pytest.fixture
def lease(store: Store, rows: Rows) -> Lease:
    """Inserts rows and takes them as a drain's batch: their send has begun."""

    def make(count: int = 1, /, by: Store = store, **columns: object) -> Batch:
        if count:
            rows.insert(count, **columns)
        return take_batch(by)

    return make


def environment(settings: Settings, **more: Any) -> dict[str, str]:
    """What a process needs to be at the outbox of these settings; `more`: others of its settings."""
    destinations = {name: {"url": destination.url} for name, destination in settings.destinations.items()}
    place = {"database_url": settings.database_url, "database_schema": settings.database_schema, "config": os.devnull}
    given = {**place, "destinations": destinations, **more}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    return {f"OUTBOX_{name.upper()}": text for name, text in texts.items()}


@pytest.fixture
def command_settings() -> dict[str, Any]:
    """Settings of the commands that differ from those of the test's store."""
    return {}


@pytest.fixture
def command(store: Store, command_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `outbox-tasks` at the test's outbox, with what a person types."""
    for name, value in {**environment(store.settings, **command_settings), "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    return lambda *arguments, typed=None: CliRunner().invoke(
        cli.outbox, arguments, input=typed, prog_name="outbox-tasks"
    )


@pytest.fixture
def page_settings() -> dict[str, Any]:
    """Settings of the page that differ from the usual ones."""
    return {"broker_url": None}


@pytest.fixture
def visit(store: Store, settings: MakeSettings, page_settings: dict[str, Any]) -> Iterator[Visit]:
    """Makes browsers of a page over the test's tables. Each page looks anew."""
    with ExitStack() as pages:

        def make(role: Role = Role.ACT, read_only: bool = False, **values: Any) -> Browser:
            page = Page(settings(**page_settings | values), who=visitor, read_only=read_only)
            pages.enter_context(closing(page))
            return Browser(page, role)

        yield make
