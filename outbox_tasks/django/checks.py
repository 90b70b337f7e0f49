"""What `manage.py check` says of the settings. The checks of the tasks' backend are in `backend.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import current_app
from django.core import checks

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    NoDestinations,
    SchemaMissing,
    SettingsFileError,
)
from outbox_tasks.operating.two_places import two_places
from outbox_tasks.satellites import satellite
from outbox_tasks.settings import Settings
from outbox_tasks.writing.eager import REMEDY, eager


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Whether the settings can be read, and are enough for a relay."""
    return list(_messages())


def check_stored(**_: Any) -> list[checks.CheckMessage]:
    """Whether the stored tasks can be run by this project's code. Only for `check --deploy`."""
    try:
        satellite("guard")
        settings = Settings()
        settings.check_destinations()
    except (KeyError, ConfigurationError, SettingsFileError, NoDestinations):
        return []  # `check_settings` says so
    from outbox_tasks.guard.stored import failing

    database = Database.connect(settings)
    try:
        groups = failing(database, settings, [current_app])
    except (DatabaseUnavailable, SchemaMissing) as error:
        return [checks.Warning(f"The stored tasks were not checked. {error}", id="outbox_tasks.W006")]
    finally:
        database.close()
    hint = "Keep the task and its arguments until the stored ones have run."
    return [checks.Error(f"Stored tasks would fail: {each}", hint=hint, id="outbox_tasks.E005") for each in groups]


def _messages() -> Iterator[checks.CheckMessage]:
    try:
        settings = Settings()
    except (ConfigurationError, SettingsFileError) as error:
        hint = (
            "Correct it in OUTBOX in Django's settings, in the variable OUTBOX_… or in outbox.toml: where it was set."
        )
        yield checks.Error(str(error), hint=hint, id="outbox_tasks.E004")
        return
    try:
        settings.check_destinations()
    except NoDestinations as error:
        yield checks.Warning(str(error), id="outbox_tasks.W002")
    for two in two_places(settings):
        if two.breaks:
            hint = "Take out the value that is not meant: commands and workers use the first."
            text = f"{two.fact} What the project publishes into the second database is never sent."
            yield checks.Warning(text, hint=hint, id="outbox_tasks.W004")
    if fact := eager(current_app):
        yield checks.Warning(fact, hint=REMEDY, id="outbox_tasks.W005")
    if settings.database_url is None:
        hint = "Set database_url in OUTBOX, to a PostgreSQL database: postgresql://…"
        text = "The relay has no database: DATABASES['default'] is not PostgreSQL, and there is no database_url."
        yield checks.Warning(text, hint=hint, id="outbox_tasks.W003")
