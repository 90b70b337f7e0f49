"""What the page has to show of a relay at work and in trouble: dead letters in 200 error groups, held-up keys, messages
in every state, a day of counts, workers, an open breaker, a paused destination, alerts and an audit.

The messages are made once. What must be of this moment is made anew whenever the tables are used again: see `now`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench import fresh, storage
from bench.filled import ROW
from outbox_tasks import __version__
from outbox_tasks.settings import Settings

DEAD, GROUPS = 10_000, 200

DEAD_LETTERS = f"""SELECT id, event_type, destination,
       CASE WHEN destination = 'orders' AND n % 40 = 0 THEN 'order:' || 4 * (n / 40) END AS key,
       convert_to(jsonb_build_object('id', n, 'customer', 'Ada Lovelace', 'cents', 1250, 'lines', jsonb_build_array(
           jsonb_build_object('product', 'chair', 'quantity', 2), jsonb_build_object('product', 'table', 'quantity', 1)
       ))::text, 'UTF8') AS payload,
       jsonb_build_object('tenant', 't' || n % 5, 'traceparent',
                          '00-' || md5(n::text) || '-' || left(md5(n::text), 16) || '-01')
         AS headers,
       time AS created_at, time + interval '40 seconds' AS dead_at, 3 AS attempts, split_part(error, ':', 1) AS code,
       substr(error, strpos(error, ':') + 2) AS error,
       (SELECT jsonb_agg(jsonb_build_object('at', time + make_interval(secs => 13 * nth), 'attempt', nth, 'what',
                CASE nth WHEN 3 THEN 'dead' ELSE 'failed' END, 'code', split_part(error, ':', 1),
                'error', substr(error, strpos(error, ':') + 2), 'by', 'publish1@relay-1:' || 4711 + n % 3))
        FROM generate_series(1, 3) nth) AS history
FROM (SELECT n, id, time, (ARRAY['orders', 'mails', 'audit', 'search'])[1 + kind % 4] AS destination,
             (ARRAY['order.created', 'order.paid', 'order.shipped', 'order.cancelled', 'invoice.sent', 'invoice.paid',
                    'customer.changed', 'stock.low', 'parcel.lost', 'refund.made'])[1 + kind / 4 % 10] AS event_type,
             (ARRAY['http_422: field "customer" of order ' || n || ' has no address',
                    'http_400: no such order ' || n,
                    'timeout: no answer within 10 s',
                    'http_500: <html><script>alert(' || n || ')</script> Internal Server Error',
                    'too_large: ' || 100000 + n || ' bytes are more than the destination takes'])[1 + kind / 40]
             AS error
      FROM (SELECT *, floor(:groups * power((n * 7919 % :count) / :count ::float8, 2.5))::int AS kind
            FROM ({ROW}
                  FROM (SELECT n, now() - make_interval(secs => 86000.0 * power(n / :count ::float8, 2) - 60) AS time
                        FROM generate_series(0, :count - 1) n)) rows) kinds) made"""

LATER = """WITH moved AS (
  DELETE FROM {schema}.outbox_ready r USING (
    SELECT r.seq FROM {schema}.outbox_ready r JOIN {schema}.outbox_messages m ON m.seq = r.seq
    WHERE r.destination = :destination AND m.event_type = coalesce(CAST(:type AS text), m.event_type) LIMIT :most
  ) AS s WHERE r.seq = s.seq RETURNING r.*
), noted AS (
  INSERT INTO {schema}.outbox_trouble (seq, attempts, code, error)
  SELECT seq, :attempts, CAST(:code AS text), CAST(:error AS text) FROM moved WHERE :attempts > 0
)
INSERT INTO {schema}.outbox_waiting (seq, due, since, size, attempts, destination)
SELECT seq, now() + interval '30 days', now() + interval '30 days', size, :attempts, destination FROM moved"""

REFUSED = {"attempts": 2, "code": "http_503", "error": "Service Unavailable"}

LEASED = """WITH moved AS (
  DELETE FROM {schema}.outbox_ready WHERE seq IN (
    SELECT seq FROM {schema}.outbox_ready WHERE destination = 'search' AND key IS NULL ORDER BY xid, seq LIMIT 300)
  RETURNING seq
)
INSERT INTO {schema}.outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
SELECT gen_random_uuid(), now() + interval '30 days', now(), 'search', 'publish1@relay-1:4711',
       array_agg(seq ORDER BY seq)
FROM moved GROUP BY seq / 400"""

NOW = (
    "TRUNCATE {schema}.outbox_tallies, {schema}.outbox_heartbeats, {schema}.outbox_destinations",
    "TRUNCATE {schema}.outbox_alerts, {schema}.outbox_publishers",
    """INSERT INTO {schema}.outbox_tallies (minute, destination, outcome, count)
       SELECT minute, destination, outcome,
              ceil(rate * weight * (1.1 + sin(extract(epoch FROM minute) / 9000 + length(destination)))
                   * (0.8 + 0.4 * random()))::bigint
       FROM generate_series(date_trunc('minute', now()) - interval '26 hours', now(), interval '1 minute') minute,
            (VALUES ('orders', 4000), ('mails', 900), ('audit', 2500), ('search', 1200)) d (destination, rate),
            (VALUES ('sent', 1.0), ('retry', 0.02), ('dead', 0.003)) o (outcome, weight)
       WHERE NOT (destination = 'mails' AND outcome = 'sent' AND minute > now() - interval '6 minutes')""",
    """INSERT INTO {schema}.outbox_destinations (name, failures, failed_at, error_code, error, opened_at, pause_until)
       VALUES ('mails', 12, now(), 'connection_refused', 'connection to mail.example.org refused', now() -
               interval '6 minutes', now() + interval '1 hour')""",
    """INSERT INTO {schema}.outbox_destinations (name, paused_at, paused_by, paused_why)
       VALUES ('search', now() - interval '20 minutes', 'anna', 'the index is being rebuilt')""",
    """INSERT INTO {schema}.outbox_alerts (name, kind, destination, first_at, count, told, told_at, facts)
       VALUES ('breaker mails', 'breaker', 'mails', now() - interval '6 minutes', 1, 1, now(),
               '{"code": "connection_refused"}'),
              ('dead_letter orders http_422', 'dead_letter', 'orders', now() - interval '2 hours', 57, 3, now(),
               '{"code": "http_422", "event_type": "order.created", "message_id": "several"}')""",
    """INSERT INTO {schema}.outbox_publishers
       SELECT 'publish' || n || '@relay-1', now() + interval '1 day' FROM generate_series(1, 4) n""",
)

ALIVE = """INSERT INTO {schema}.outbox_heartbeats (name, kind, seen_at, facts)
SELECT name, kind, now() - make_interval(secs => ago), facts::jsonb || jsonb_build_object(
           'version', CAST(:version AS text), 'clock', extract(epoch FROM now()) - ago,
           'started', to_char(now() - interval '3 days', 'YYYY-MM-DD"T"HH24:00:00Z'))
FROM (VALUES
  ('claim@relay-1', 'worker', 2, '{"queues": ["outbox.claim", "outbox.maintain"], "host": "relay-1", "pid": 4700,
                                    "pool": "solo", "concurrency": 1}'),
  ('publish1@relay-1', 'worker', 4, '{"queues": ["outbox.publish"], "host": "relay-1", "pid": 4710, "pool": "prefork",
                                       "concurrency": 2}'),
  ('publish2@relay-2', 'worker', 7, '{"queues": ["outbox.publish"], "host": "relay-2", "pid": 4712, "pool": "prefork",
                                       "concurrency": 2}'),
  ('publish3@relay-3', 'worker', 400, '{"queues": ["outbox.publish"], "host": "relay-3", "pid": 4713,
                                         "pool": "prefork", "concurrency": 2}'),
  ('shop@web-1', 'tasks', 3, '{"queues": ["celery"], "host": "web-1", "pid": 812, "pool": "prefork",
                                "concurrency": 4}'),
  ('claim', 'claim', 1, '{}'), ('publish', 'publish', 1, '{}'), ('beat', 'beat', 1, '{}'),
  ('maintain', 'maintain', 900, '{}')) seen (name, kind, ago, facts)
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, facts = excluded.facts"""

ACTS = """INSERT INTO {schema}.outbox_audit (at, who, why, action, target, count, facts)
SELECT now() - make_interval(hours => 3 * (400 - n)), (ARRAY['anna', 'ben', 'chris'])[1 + n % 3],
       (ARRAY['the shop has the address now', 'the customer was told by telephone', 'a rehearsal of the runbook',
              'the destination was down'])[1 + n % 4],
       (ARRAY['redrive', 'discard', 'pause', 'resume'])[1 + n % 4],
       CASE WHEN n % 4 > 1 THEN (ARRAY['orders', 'mails', 'audit', 'search'])[1 + n % 4] END,
       CASE WHEN n % 4 > 1 THEN 1 ELSE 17 * n END, '{}'
FROM generate_series(1, 400) n"""


def bury(settings: Settings) -> None:
    """Make the dead letters. Before the backlog: they hold up keys of it."""
    storage.bury(settings, DEAD_LETTERS, count=DEAD, groups=GROUPS)


def act(settings: Settings) -> None:
    """Bring messages into every state, and fill the audit."""
    fresh.execute(settings, LATER, destination="mails", type="invoice.sent", most=1_000_000, **REFUSED)
    fresh.execute(settings, LATER, destination="mails", type=None, most=2000, **REFUSED)
    fresh.execute(settings, LATER, destination="audit", type=None, most=5000, attempts=0, code=None, error=None)
    fresh.execute(settings, LEASED)
    fresh.execute(settings, ACTS)


@contextmanager
def now(settings: Settings) -> Iterator[None]:
    """Make what is of this moment, and keep the workers alive."""
    for statement in NOW:
        fresh.execute(settings, statement)
    over = threading.Event()

    def live() -> None:
        while True:
            fresh.execute(settings, ALIVE, version=__version__)
            if over.wait(5):
                return

    living = threading.Thread(target=live)
    living.start()
    try:
        yield
    finally:
        over.set()
        living.join()
