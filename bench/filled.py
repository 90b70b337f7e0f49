"""Tables that are full: an archive of millions, and a backlog. For the benches of what people look at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import create_engine, text

from bench import fresh
from outbox_tasks.database.connection import engine_url
from outbox_tasks.settings import Settings

DAYS = 8
"""Days of the archive."""

DESTINATIONS = ("orders", "mails", "audit", "search")

ROW = """SELECT n, time,
       (ARRAY['order.created', 'order.paid', 'order.shipped', 'order.cancelled', 'invoice.sent', 'customer.changed',
              'stock.low'])[1 + n % 7] AS event_type,
       (ARRAY['orders', 'mails', 'audit', 'search'])[1 + n % 4] AS name,
       convert_to(json_build_object('id', n, 'note', repeat('x', 60))::text, 'UTF8') AS payload,
       CASE WHEN n % 4 = 0 THEN 'order:' || n % 50000 END AS key,
       -- As a writer at that time would have made it.
       (lpad(to_hex((extract(epoch FROM time) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3)
         || '8' || substr(md5(n::text), 4, 15))::uuid AS id"""

ARCHIVE = f"""INSERT INTO {{schema}}.outbox_archive (seq, id, event_type, destination, key, payload, content_type,
                                           headers, attempts, created_at, state, finished_at, locked_by)
SELECT n, id, event_type, name, key, payload, 'application/json', '{{}}', 1, time, 'sent', time, 'relay-1:4711'
FROM ({ROW}
      FROM (SELECT n, date_trunc('day', now(), 'UTC')
                      - make_interval(secs => 86400.0 * :days * (1 - n / :count ::float8)) AS time
            FROM generate_series(0, :count - 1) n)) rows"""

PENDING = f"""INSERT INTO {{schema}}.outbox_messages (id, event_type, destination, key, payload, created_at,
                                           locked_until)
SELECT id, event_type, name, key, payload, time, time
FROM ({ROW}
      FROM (SELECT n, now() - make_interval(secs => 3600.0 * (1 - n / :count ::float8)) AS time
            FROM generate_series(1, :count) n)) rows"""


def fill(settings: Settings, archived: int, pending: int) -> None:
    """Make the rows of the archive and of the backlog."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for back in range(DAYS, 0, -1):
        day = today - timedelta(days=back)
        fresh.execute(
            settings,
            f"CREATE TABLE {{schema}}.outbox_archive_{day:%Y%m%d} PARTITION OF {{schema}}.outbox_archive "
            f"FOR VALUES FROM ('{day.isoformat()}') TO ('{(day + timedelta(days=1)).isoformat()}')",
        )
    fresh.execute(settings, ARCHIVE, count=archived, days=DAYS)
    fresh.execute(settings, PENDING, count=pending)


def analyze(settings: Settings) -> None:
    """Do what autovacuum would soon do."""
    engine = create_engine(engine_url(str(settings.database_url)), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for table in ("outbox_messages", "outbox_archive"):
            connection.execute(text(f"VACUUM (ANALYZE) {settings.database_schema}.{table}"))
    engine.dispose()
