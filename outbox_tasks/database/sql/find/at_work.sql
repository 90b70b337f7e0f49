-- A page of messages that are not yet sent, in the order of their numbers: those beyond `last`.
--
-- newer: to which side; last (seq): the place; look: how many to look at; size: how many are wanted; until: the latest time
-- of writing (null: any); states, destination, event_type, key, code, older, newer_than: see parts/wanted.sql. Returns the
-- messages in this order, and a row without a seq: how many it looked at, and if that was not all, where it ended (end_seq),
-- and when that message was written (created_at).
-- Indexes: by seq of outbox_ready and outbox_held (BRIN), outbox_waiting, outbox_runs and outbox_dead. If few match the
-- states, destination and key, it looks through all of these tables once; they are narrow.
\ir parts/at_work.sql
SELECT seq, id, destination, key, event_type, attempts, last_error_code, left(last_error, 300) AS last_error, created_at,
       locked_by, state, locked_until, dead_at, NULL::bigint AS looked, NULL::bigint AS end_seq, place
FROM found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT m.created_at FROM :schema.outbox_messages m WHERE m.seq = (SELECT s.seq FROM seen s WHERE s.place = :look::integer)),
       NULL, NULL, NULL, NULL, count(*),
       max(seq) FILTER (WHERE place = :look::integer), NULL
FROM seen
ORDER BY place
