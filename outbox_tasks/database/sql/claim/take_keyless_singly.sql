-- Takes due messages without a key singly, of several destinations: each gets a lease of its own, and its send has not begun.
--
-- share: JSON rows of destination; most; span, as for take_keyless.sql; and token, of the probe of a destination whose circuit is open.
-- A probe takes a message that has never failed, if there is one among the first 100. holder, hold: of the leases. Returns the messages
-- without their payloads. The last row has no number: its `at` is the snapshot in which this statement looked, its `id` is when the
-- server began to count.
WITH share AS MATERIALIZED (
  SELECT *, CASE WHEN token IS NULL THEN most ELSE 100 END AS reach
  FROM json_to_recordset(:share::json) AS s(destination text, most integer, token uuid, span json)
), due AS MATERIALIZED (
  SELECT r.*, share.most, share.token IS NOT NULL AND r.attempts > 0 AS failed,
         (row_number() OVER (PARTITION BY r.destination, r.priority ORDER BY r.xid, r.seq) - 1) / span.weight AS turn
  FROM share
  CROSS JOIN LATERAL json_to_recordset(share.span) AS span(priority smallint, weight integer, xid xid8, seq bigint, until xid8)
  CROSS JOIN LATERAL (
    SELECT r.ctid AS at, r.destination, r.priority, r.xid, r.seq, r.attempts FROM :schema.outbox_ready r
    WHERE r.destination = share.destination AND r.priority = span.priority AND r.key IS NULL AND NOT r.alone
      AND (r.xid, r.seq) > (span.xid, span.seq) AND r.xid <= span.until
    ORDER BY r.xid, r.seq LIMIT share.reach FOR UPDATE SKIP LOCKED) AS r
  UNION ALL
  SELECT r.*, share.most, share.token IS NOT NULL AND r.attempts > 0, -1 FROM share CROSS JOIN LATERAL (
    SELECT r.ctid AS at, r.destination, r.priority, r.xid, r.seq, r.attempts FROM :schema.outbox_ready r
    WHERE r.alone AND r.destination = share.destination ORDER BY r.seq LIMIT share.reach FOR UPDATE SKIP LOCKED) AS r
), placed AS (
  SELECT at, most, row_number() OVER (PARTITION BY destination ORDER BY failed, turn, xid, seq) AS place FROM due
), taken AS MATERIALIZED (
  DELETE FROM :schema.outbox_ready r WHERE r.ctid = ANY (ARRAY(SELECT at FROM placed WHERE place <= most))
  RETURNING r.seq, r.xid, r.priority, r.attempts, r.destination, r.alone
), probe AS MATERIALIZED (
  SELECT destination, token FROM share WHERE token IS NOT NULL
), single AS MATERIALIZED (
  SELECT taken.*, coalesce(probe.token, gen_random_uuid()) AS token
  FROM taken LEFT JOIN probe USING (destination)
), leased AS (
  INSERT INTO :schema.outbox_leases (token, locked_until, destination, holder, seqs)
  SELECT token, clock_timestamp() + :hold::float * interval '1 second', destination, :holder::text, ARRAY[seq]
  FROM single WHERE set_config('synchronous_commit', 'off', true) = 'off'
)
SELECT s.destination, s.seq, m.id::text, m.event_type, coalesce(t.attempts, 0) AS attempts, s.token::text AS token,
       s.priority::integer AS priority, CASE WHEN NOT s.alone THEN s.xid::text END AS at
FROM single s
CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s.seq LIMIT 1) AS m
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = s.seq LIMIT 1) AS t ON true
UNION ALL
SELECT NULL, NULL, pg_stat_get_bgwriter_stat_reset_time()::text, NULL, NULL, NULL, NULL, pg_current_snapshot()::text
