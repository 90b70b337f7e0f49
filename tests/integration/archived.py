"""An archive with a past."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, insert, inspect, literal, select, text
from sqlalchemy.sql import ColumnElement

from outbox_tasks.database.schema import tables
from outbox_tasks.operating.archive import statements as archive

MONTH = 30
"""Days ago: longer than anything is kept here."""


class Archived:
    """The archive of a test's outbox, written by hand."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema
        self.tables = tables(schema)
        with engine.connect() as connection:
            self.today: date = connection.scalar(select(func.now())).astimezone(UTC).date()

    def ago(self, days: int) -> date:
        return self.today - timedelta(days=days)

    def make_day(self, day: date) -> str:
        """Attach a partition for a past day; returns its name."""
        name = f"outbox_archive_{day:%Y%m%d}"
        until = day + timedelta(days=1)
        self.run(
            f"CREATE TABLE IF NOT EXISTS {self.schema}.{name} PARTITION OF {self.schema}.outbox_archive "
            f"FOR VALUES FROM ('{day} 00:00+00') TO ('{until} 00:00+00')"
        )
        return name

    def fill(self, day: date, count: int = 1, *, partition: bool = True, **columns: Any) -> str:
        """Commit rows that were sent at noon of a day, in its own partition or the default one; returns its name."""
        name = self.make_day(day) if partition else archive.DEFAULT
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        values: dict[str, Any] = {
            "seq": literal(1),
            "id": func.gen_random_uuid(),
            "event_type": "order.created",
            "destination": "orders",
            "payload": b'{"id": 42}',
            "content_type": "application/json",
            "headers": {},
            "attempts": 1,
            "created_at": noon - timedelta(minutes=1),
            "state": "sent",
            "finished_at": noon,
            **columns,
        }
        a = self.tables.archive
        made = [v if isinstance(v, ColumnElement) else literal(v, a.c[n].type) for n, v in values.items()]
        rows = select(*made).select_from(func.generate_series(1, count).alias("n"))
        with self.engine.begin() as connection:
            connection.execute(insert(a).from_select(list(values), rows))
        return name

    def count(self, day: date | None = None) -> int:
        """Rows of a day, or of all."""
        a = self.tables.archive
        statement = select(func.count()).select_from(a)
        if day is not None:
            statement = statement.where(func.timezone("UTC", a.c.finished_at) >= day).where(
                func.timezone("UTC", a.c.finished_at) < day + timedelta(days=1)
            )
        with self.engine.connect() as connection:
            return int(connection.scalar(statement) or 0)

    def names(self) -> set[str]:
        """The tables of past days: partitions, and those taken out to be dropped."""
        found = inspect(self.engine).get_table_names(schema=self.schema)
        today = f"outbox_archive_{self.today:%Y%m%d}"
        return {
            n
            for n in found
            if n.startswith(archive.GONE) or (n[:15] == "outbox_archive_" and n[15:].isdigit() and n < today)
        }

    def run(self, sql: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(sql))
