-- Beyond which number messages are older than an age: what has a lower one was written before then. A list of old messages
-- begins there, and looks through none of the newer ones.
--
-- age: seconds. Halves the span of numbers until it is empty, with one look into the primary keys of outbox_messages each
-- time. A replay writes an old message under a new number: it counts as new here.
WITH RECURSIVE span AS (
  SELECT 0::bigint AS low, last_value + 1 AS high FROM :schema.outbox_seq
  UNION ALL
  SELECT CASE WHEN old.seq IS NULL THEN span.low ELSE old.seq + 1 END,
         CASE WHEN old.seq IS NULL THEN (span.low + span.high) / 2 ELSE span.high END
  FROM span
  LEFT JOIN LATERAL (
    SELECT m.seq, m.created_at FROM :schema.outbox_messages m
    WHERE m.seq >= (span.low + span.high) / 2 AND m.seq < span.high ORDER BY m.seq LIMIT 1
  ) AS old ON old.created_at <= now() - :age::float * interval '1 second'
  WHERE span.low < span.high
)
SELECT max(low) AS last FROM span
