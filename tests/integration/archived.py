"""An outbox with a past: days that are over, and what was sent or discarded in them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, literal, literal_column, select, text

from outbox_tasks.operating.retention import Maintained, alone, trim
from outbox_tasks.relay.store import Store
from tests.rows import Tables, insert

MONTH = 30
"""Days ago: longer than anything is kept here."""

TODAY = 1000
"""The number of today, so that there are numbers for the days before it."""


class Archived:
    """The archive of a test's outbox, written by hand."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema
        self.tables = Tables(engine, schema)
        with engine.connect() as connection:
            self.today: date = connection.scalar(select(func.now())).astimezone(UTC).date()
        self._moved()

    def _moved(self) -> None:
        """An empty outbox begins at day 0. Let that be the day `TODAY`."""
        s = self.schema
        if self.value(f"SELECT max(number) FROM {s}.outbox_days") < TODAY:
            self.run(f"SELECT {s}.outbox_day_make(n) FROM generate_series({TODAY}, {TODAY + 2}) AS n")
            self.run(f"UPDATE {s}.outbox_days SET number = {TODAY}")
            self.run(f"SELECT setval('{s}.outbox_seq', {TODAY << 32})")

    def ago(self, days: int) -> date:
        return self.today - timedelta(days=days)

    def number(self, day: date) -> int:
        return TODAY - (self.today - day).days

    def make_day(self, day: date) -> int:
        """Make a past day, if it is not there; returns its number."""
        s, number = self.schema, self.number(day)
        if number < TODAY:
            self.run(f"SELECT {s}.outbox_day_make({number})")
            self.run(
                f"INSERT INTO {s}.outbox_days (number, date, began_at, ended_at) VALUES ({number}, '{day}', "
                f"'{day} 00:00+00', '{day + timedelta(days=1)} 00:00+00') ON CONFLICT DO NOTHING"
            )
        return number

    def fill(self, day: date, count: int = 1, **columns: Any) -> str:
        """Commit messages of a day that were sent at its noon. Returns the name of the day's messages. `seq`: their
        places among those of the day."""
        number, s = self.make_day(day), self.schema
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        state, attempts = columns.pop("state", "sent"), columns.pop("attempts", 1)
        at, holder = columns.pop("finished_at", noon), columns.pop("locked_by", None)
        low, high = number << 32, (number + 1) << 32
        place = columns.pop("seq", None)
        last = f"(SELECT coalesce(max(seq), {low}) FROM {s}.outbox_messages WHERE seq >= {low} AND seq < {high})"
        values = {
            "event_type": "order.created",
            "destination": "orders",
            "payload": b'{"id": 42}',
            "created_at": noon - timedelta(minutes=1),
            "seq": literal_column(f"{last} + generate_series") if place is None else literal(low) + place,
            "attempts": attempts - (state == "sent"),
            **columns,
        }
        with self.engine.begin() as connection:
            ids = insert(connection, s, count, values)
            settled = text(
                f"WITH ready AS (DELETE FROM {s}.outbox_ready r USING {s}.outbox_messages m "
                "WHERE r.seq = m.seq AND m.id = ANY (CAST(:ids AS uuid[])) RETURNING r.seq, r.destination), "
                f"held AS (DELETE FROM {s}.outbox_held r USING {s}.outbox_messages m "
                "WHERE r.seq = m.seq AND m.id = ANY (CAST(:ids AS uuid[])) RETURNING r.seq, r.destination), "
                "gone AS (SELECT * FROM ready UNION ALL SELECT * FROM held) "
                f"INSERT INTO {s}.outbox_journal (first, at, state, count, destination, holder, seqs) "
                "SELECT min(seq), :at, :state, count(*), destination, :holder, range_agg(int8range(seq, seq + 1)) "
                "FROM gone GROUP BY destination, seq >> 32"
            )
            connection.execute(settled, {"ids": ids, "at": at, "state": state, "holder": holder})
        return f"outbox_messages_{number}"

    def count(self, day: date | None = None) -> int:
        """Messages of a day, or of all, that were sent or discarded."""
        where = "" if day is None else f"WHERE first >> 32 = {self.number(day)}"
        return int(self.value(f"SELECT coalesce(sum(count), 0) FROM {self.schema}.outbox_journal {where}"))

    def days(self) -> set[date]:
        """The days that are over and not gone."""
        found = f"SELECT date FROM {self.schema}.outbox_days WHERE ended_at IS NOT NULL AND gone_at IS NULL"
        with self.engine.connect() as connection:
            return set(connection.scalars(text(found)))

    def value(self, sql: str) -> Any:
        with self.engine.connect() as connection:
            return connection.scalar(text(sql))

    def run(self, sql: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(sql))


def drop_days(store: Store, older_than: timedelta) -> Maintained:
    """Drop old days, as maintenance does in several runs."""
    result = Maintained(more=True)
    with alone(store):
        while result.more:
            result.more = False
            trim(store, older_than, result)
    return result
