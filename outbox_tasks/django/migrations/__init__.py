"""One Django migration for each of `outbox_tasks/migrations/`."""

from __future__ import annotations

from typing import Any

from django.db.migrations import RunPython

from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings


def to_version(version: int) -> RunPython:
    """The operation that brings the tables to `version`, where `outbox-tasks init` has not done so. They stay when it
    is undone: there may be messages in them."""

    def forwards(apps: Any, schema_editor: Any) -> None:
        upgrade(schema_editor.connection, Settings().database_schema, to=version)

    return RunPython(forwards, RunPython.noop)
