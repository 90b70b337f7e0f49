"""Tables that are full: an archive of millions, and a backlog. For the benches of what people look at."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from bench import storage
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

ARCHIVED = f"""SELECT ((:today - :days + n * :days / :count)::bigint << 32) + n AS seq, id, time AS created_at,
       event_type, name AS destination, key, NULL::jsonb AS headers, payload
FROM ({ROW}
      FROM (SELECT n, date_trunc('day', now(), 'UTC')
                      - make_interval(secs => 86400.0 * :days * (1 - n / :count ::float8)) AS time
            FROM generate_series(0, :count - 1) n)) rows"""

PENDING = f"""SELECT id, time AS created_at, event_type, name AS destination, key, NULL::jsonb AS headers, payload
FROM ({ROW}
      FROM (SELECT n, now() - make_interval(secs => 3600.0 * (1 - n / :count ::float8)) AS time
            FROM generate_series(1, :count) n)) rows"""


def archive(settings: Settings, count: int) -> None:
    """Make what was sent in the last days."""
    for ago in range(DAYS, 0, -1):
        storage.make_day(settings, ago)
    bundle = 100 * len(DESTINATIONS)
    storage.archive(settings, ARCHIVED, bundle, count=count, days=DAYS, today=storage.TODAY)


def pend(settings: Settings, count: int) -> None:
    """Make a backlog."""
    storage.ready(settings, PENDING, count=count)


def analyze(settings: Settings) -> None:
    """Do what autovacuum would soon do."""
    engine = create_engine(engine_url(str(settings.database_url)), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for table in ("messages", "journal", "ready", "waiting", "leases", "dead", "trouble"):
            connection.execute(text(f"VACUUM (ANALYZE) {settings.database_schema}.outbox_{table}"))
    engine.dispose()
