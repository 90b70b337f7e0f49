"""The database that a command works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

if TYPE_CHECKING:
    from celery import Celery


def installed() -> tuple[Celery, Settings] | None:
    """The app in which the relay is installed, with the relay's settings, for `celery -A <app> outbox`."""
    app = getattr(click.get_current_context().obj, "app", None)
    resources = None if app is None else vars(app).get("outbox_relay")
    return None if resources is None else (app, resources.settings)


def relay_settings() -> Settings:
    """Those of the relay in the app of `celery -A <app> outbox`, which code may have made. Otherwise those of the
    environment and outbox.toml."""
    app_and_settings = installed()
    return Settings() if app_and_settings is None else app_and_settings[1]


@contextmanager
def open_store(destination: str | None = None, settings: Settings | None = None) -> Iterator[Store]:
    """The store of the settings. Refuses an unknown destination, and tables of another release."""
    settings = settings or relay_settings()
    if destination is not None and destination not in settings.destinations:
        known = ", ".join(sorted(settings.destinations)) or "none"
        raise click.BadParameter(f"{destination!r} is not configured; known: {known}", param_hint="DESTINATION")
    store = Store.connect(settings)
    try:
        store.check_version()
        yield store
    finally:
        store.close()
