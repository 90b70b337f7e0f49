-- A page of messages, sent ones too, in the order of their numbers: those beyond `last`.
--
-- newer: to which side; last (seq): the place; look: how many to look at; size: how many are wanted; until: the latest time
-- of writing (null: any); states, destination, event_type, key, code, older, newer_than: see parts/wanted.sql. Returns the
-- messages in this order, and a row without a seq: how many it looked at, and if that was not all, where it ended (end_seq),
-- and when that message was written (created_at).
-- Index: the primary keys of outbox_messages: see parts/known.sql.
\ir parts/known.sql
, found AS (
  SELECT m.place, m.seq, m.id, m.destination, m.key, m.event_type, s.attempts, t.code AS last_error_code,
         t.error AS last_error, m.created_at, coalesce(m.holder, r.holder) AS locked_by, s.state, s.locked_until, d.dead_at,
         m.finished_at
  \ir parts/states.sql
  WHERE (:until::timestamptz IS NULL OR m.created_at <= :until::timestamptz) AND
    \ir parts/wanted.sql
  ORDER BY m.place LIMIT :size::integer
)
SELECT seq, id, destination, key, event_type, attempts, last_error_code, left(last_error, 300) AS last_error, created_at,
       locked_by, state, locked_until, dead_at, finished_at, NULL::bigint AS looked, NULL::bigint AS end_seq, place
FROM found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT m.created_at FROM :schema.outbox_messages m WHERE m.seq = (SELECT s.seq FROM seen s WHERE s.place = :look::integer)),
       NULL, NULL, NULL, NULL, NULL, count(*),
       max(seq) FILTER (WHERE place = :look::integer), NULL
FROM seen
ORDER BY place
