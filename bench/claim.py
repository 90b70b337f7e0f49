"""What claiming 100 rows costs as the tables fill: with a backlog, a full archive, and many leased rows.

    python bench/claim.py [--rows 1000000] [--json]

Each line is the median of many claims, and its ratio to that of an otherwise empty table in the same run. The server
is an embedded one, unless OUTBOX_DATABASE_URL names another; there the bench uses a schema of its own.
"""

from __future__ import annotations

import json
import time
from statistics import median
from uuid import uuid4

import click
from fresh import outbox
from sqlalchemy import text

from outbox_tasks.database.connection import migrating
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

BATCH, CLAIMS = 100, 60

FILL = """INSERT INTO {schema}.outbox_messages (event_type, destination, payload, locked_until, lease)
SELECT 'order.created', 'orders', '\\x7b7d', clock_timestamp() + :due * interval '1 second', {lease}
FROM generate_series(1, :count)"""

ARCHIVE = """INSERT INTO {schema}.outbox_archive (seq, id, event_type, destination, payload, content_type, headers,
                                                   attempts, created_at, state)
SELECT n, {schema}.outbox_uuid7(), 'order.created', 'orders', '\\x7b7d', 'application/json', '{{}}', 1, now(), 'sent'
FROM generate_series(1, :count) n"""


class Bench:
    """One outbox, and the cost of a claim from it."""

    def __init__(self, settings: Settings) -> None:
        self.schema = settings.database_schema
        self.settings = settings
        self.store = Store.connect(settings)

    def run(self, sql: str, **values: object) -> None:
        """Execute SQL without the relay's limits."""
        with migrating(self.settings) as connection:
            connection.execute(text(sql.format(schema=self.schema, lease=values.pop("lease", "NULL"))), values)

    def claim_ms(self) -> float:
        """Median milliseconds of a claim of 100 due rows; each claim finds new ones."""
        taken = []
        for _ in range(CLAIMS):
            self.run(FILL, count=BATCH, due=-1)
            started = time.perf_counter()
            rows = self.store.claim({"orders": BATCH}, str(uuid4()))
            taken.append((time.perf_counter() - started) * 1000)
            assert len(rows) == BATCH
        return median(taken)


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the backlog and of the archive.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(rows: int, as_json: bool) -> None:
    """Measure claims of 100 rows."""
    with outbox(Bench) as bench:
        bench.claim_ms()  # warm up
        bench.run("TRUNCATE {schema}.outbox_messages")
        figures = {"empty table": bench.claim_ms()}
        bench.run(FILL, count=50_000, due=50, lease="gen_random_uuid()")
        figures["50,000 leased"] = bench.claim_ms()
        bench.run(ARCHIVE, count=rows)
        figures[f"… and {rows:,} archived"] = bench.claim_ms()
        bench.run(FILL, count=rows, due=-1)
        figures[f"… and {rows:,} pending"] = bench.claim_ms()
    base = figures["empty table"]
    if as_json:
        click.echo(
            json.dumps({name: {"ms": round(ms, 2), "ratio": round(ms / base, 2)} for name, ms in figures.items()})
        )
    else:
        for name, ms in figures.items():
            click.echo(f"{name:>28}  {ms:6.2f} ms  × {ms / base:.2f}")


if __name__ == "__main__":
    main()
