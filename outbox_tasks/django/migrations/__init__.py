"""The first makes the tables of `sql/schema.sql`."""

from __future__ import annotations

from typing import Any

from django.db.migrations import RunPython

from outbox_tasks.errors import UnsupportedDatabase
from outbox_tasks.migrations import upgrade


def tables() -> RunPython:
    """The operation that makes the tables, where `outbox-tasks init` has not done so. They stay when it is undone:
    there may be messages in them."""

    def forwards(apps: Any, schema_editor: Any) -> None:
        connection = schema_editor.connection
        try:
            upgrade(connection)
        except UnsupportedDatabase as refused:
            reason = (
                f'{refused.reason}. It is Django\'s database {connection.alias!r}: keep the app "outbox_tasks" out of '
                "it with a database router (allow_migrate)"
            )
            raise UnsupportedDatabase(reason=reason) from None

    return RunPython(forwards, RunPython.noop)
