-- Takes due messages without a key: of each destination at most its share, and of each priority the first ones. With
-- this they are gone from ready; `lease.sql`, in the same transaction, leases them.
--
-- span: JSON rows of destination, size (its share), tries (its circuit is open: of its first 100 messages, those that have never
-- failed go first), priority, weight, and which part of the lane to look at: what comes after (xid, seq), up to the
-- transaction `until`. A claim goes on where it was before, and looks once at what was written by transactions that were open
-- then. Returns the messages; and one row without a number, with the snapshot
-- in which this looked, and as `id` since when the server counts: a crash begins that anew.
WITH found AS MATERIALIZED (
  SELECT r.at, r.destination, r.xid, r.seq, span.size AS share, span.tries AND r.attempts > 0 AS failed,
         (row_number() OVER (PARTITION BY r.destination, r.priority ORDER BY r.xid, r.seq) - 1) / span.weight AS turn
  FROM json_to_recordset(:span::json) AS span(destination text, size integer, tries boolean, priority smallint, weight integer,
                                              xid xid8, seq bigint, until xid8)
  CROSS JOIN LATERAL (
    SELECT r.ctid AS at, r.destination, r.priority, r.xid, r.seq, r.attempts FROM :schema.outbox_ready r
    WHERE r.destination = span.destination AND r.priority = span.priority AND r.key IS NULL
      AND (r.xid, r.seq) > (span.xid, span.seq) AND r.xid <= span.until
    ORDER BY r.xid, r.seq LIMIT CASE WHEN span.tries THEN 100 ELSE span.size END
    FOR UPDATE SKIP LOCKED
  ) AS r
), placed AS (
  SELECT at, share, row_number() OVER (PARTITION BY destination ORDER BY failed, turn, xid, seq) AS place FROM found
), taken AS (
  DELETE FROM :schema.outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT at FROM placed WHERE place <= share))
  RETURNING r.*
)
SELECT taken.seq, m.id::text, m.event_type, taken.xid::text AS at,
       -- Most are due for the first time. Of the others trouble may say since when they count as due: see act/redrive.sql.
       date_part('epoch', now()) - date_part('epoch', CASE WHEN taken.since = coalesce(m.deliver_at, m.created_at) THEN taken.since
         ELSE coalesce((SELECT t.since FROM :schema.outbox_trouble t WHERE t.seq = taken.seq), m.deliver_at, m.created_at)
         END) AS age, taken.size,
       taken.attempts, taken.priority, taken.alone, taken.destination
FROM taken
CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = taken.seq LIMIT 1) AS m
UNION ALL
SELECT NULL, pg_stat_get_bgwriter_stat_reset_time()::text, NULL, pg_current_snapshot()::text,
       NULL, NULL, NULL, NULL, NULL, NULL
