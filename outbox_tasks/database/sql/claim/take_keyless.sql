-- Takes due messages without a key as a drain's batch, in one statement: it leases them, begins their send, and returns them.
-- There are three cases. 1. The destination is shut: nothing is taken. 2. A message must be sent by itself: it is the whole batch.
-- 3. Else the batch has up to `most` messages with up to `bytes` of payload in all, but one message in any case; the priorities get
-- shares of it by their weights.
--
-- destination; token, holder, hold: of the lease; largest: a payload with more bytes is not returned; span: which parts of each lane
-- to look at, as JSON rows of priority and weight: the messages after (xid, seq), up to those of the transaction `until`. Which parts
-- these are, relay/store/lanes.py says.
-- One row has no message. It says how far the take got: shut (whether the destination is shut); snapshot; life (when the server began to
-- count, which changes with a crash); looked (at how many messages); reached (of each priority the last message that was taken).
WITH alone AS MATERIALIZED (
  SELECT r.ctid AS at FROM :schema.outbox_ready r
  WHERE r.destination = :destination::text AND r.alone AND NOT (SELECT :schema.outbox_is_shut(:destination))
  ORDER BY r.seq LIMIT 1 FOR UPDATE SKIP LOCKED
), lane AS MATERIALIZED (
  SELECT r.*, (row_number() OVER (PARTITION BY r.priority ORDER BY r.xid, r.seq) - 1) / span.weight AS turn
  FROM json_to_recordset(:span::json) AS span(priority smallint, weight integer, xid xid8, seq bigint, until xid8)
  CROSS JOIN LATERAL (
    SELECT r.ctid AS at, r.priority, r.xid, r.seq, r.size FROM :schema.outbox_ready r
    WHERE r.destination = :destination AND r.priority = span.priority AND r.key IS NULL AND NOT r.alone
      AND (r.xid, r.seq) > (span.xid, span.seq) AND r.xid <= span.until
      AND NOT (SELECT :schema.outbox_is_shut(:destination)) AND NOT EXISTS (SELECT FROM alone)
    ORDER BY r.xid, r.seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS r
), placed AS (
  SELECT at, row_number() OVER lane AS place, sum(size) OVER lane AS total FROM lane WINDOW lane AS (ORDER BY turn, xid, seq)
), taken AS MATERIALIZED (
  DELETE FROM :schema.outbox_ready r WHERE r.ctid = ANY (ARRAY(
    SELECT at FROM placed WHERE place <= :most AND (place = 1 OR total <= :bytes::bigint) UNION ALL SELECT at FROM alone))
  RETURNING r.seq, r.xid, r.priority
), leased AS (
  INSERT INTO :schema.outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
  SELECT :token::uuid, clock_timestamp() + :hold::float * interval '1 second', clock_timestamp(), :destination, :holder::text,
         array_agg(seq ORDER BY seq)
  FROM taken HAVING count(*) > 0 AND set_config('synchronous_commit', 'off', true) = 'off'
)
SELECT h.*, looked.*
FROM :schema.outbox_leased_messages(ARRAY(SELECT seq FROM taken), :largest::integer) AS h
FULL JOIN (
  SELECT :schema.outbox_is_shut(:destination) AS shut, pg_current_snapshot()::text AS snapshot,
         pg_stat_get_bgwriter_stat_reset_time()::text AS life, (SELECT count(*) FROM lane)::integer AS looked,
         (SELECT jsonb_agg(jsonb_build_array(priority, xid, seq)) FROM (
            SELECT DISTINCT ON (priority) priority, xid::text, seq FROM taken ORDER BY priority, taken.xid DESC, seq DESC) AS last
         ) AS reached
) AS looked ON false
