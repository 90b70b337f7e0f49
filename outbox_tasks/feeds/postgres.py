"""A feed in a PostgreSQL database. Its rows become visible out of the order of their numbers: marks in pg_locks say
which keys are still being written, as in the relay's own tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from outbox_tasks.database import sql
from outbox_tasks.database.patient import Patient
from outbox_tasks.feeds.source import LOOK_BYTES, MESSAGE_BYTES, Row, Source

ALL = 0
"""The class that stands for all keys."""

CONNECTION: dict[str, Any] = {
    "client_encoding": "utf8", "application_name": "outbox_tasks feed", "tcp_user_timeout": 10_000,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 2,
}  # fmt: skip

NO_FILE = f"{os.devnull}/none"

ALONE: dict[str, Any] = {
    "user": "", "password": "", "passfile": NO_FILE, "sslcert": NO_FILE, "sslkey": "", "hostaddr": "", "options": "",
    "gssencmode": "disable",
}  # fmt: skip
"""Parameters that libpq would take from the relay's variables and files if the URL lacks them. The server of a tenant
must not get the relay's password or its client certificate."""


class PostgresSource(Source):
    dialect: ClassVar[str] = "postgresql"
    style: ClassVar[str] = sql.NUMBERED

    def _connect(self) -> Any:
        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        wait = max(2, round(self.timeout))
        # Nothing is prepared or set for the session: there may be a pooler between.
        given = ({} if self._by_hand else ALONE) | conninfo_to_dict(url) | {"connect_timeout": wait, **CONNECTION}
        connection = Patient.connect(autocommit=True, prepare_threshold=None, **given)
        connection.patience = self.timeout
        return connection

    def _look(self, connection: Any, most: int) -> list[Row]:
        self._check(connection)
        marks = self._rows(connection, "marks")
        floors: dict[int, int] = {}
        for _, class_, floor in marks:
            if class_ is not None:
                floors[class_] = min(floor, floors.get(class_, floor))
        all_ = floors.pop(ALL, None)
        found = self._rows(
            connection, "look", high=marks[0][0], floors=json.dumps(floors), all_=all_, most=most, enough=LOOK_BYTES,
            largest=MESSAGE_BYTES,
        )  # fmt: skip
        return [Row(*row) for row in found]

    def _check(self, connection: Any) -> None:
        """Whether rows can be deleted here, and row-level security hides none."""
        replica, hidden = self._rows(connection, "check")[0]
        if replica:
            raise self._trouble("it takes no writes, as replicas do")
        if hidden:
            raise self._trouble(
                "row-level security hides rows of outbox_feed from this role. Switch it off: ALTER TABLE outbox_feed "
                "DISABLE ROW LEVEL SECURITY"
            )

    def _delete(self, connection: Any, rows: Sequence[tuple[int, str]]) -> None:
        self._rows(connection, "delete", rows=json.dumps(rows))

    def _execute(self, connection: Any, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = psycopg.RawCursor(connection)
        cursor.execute(text.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def _lacks_table(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UndefinedTable)
