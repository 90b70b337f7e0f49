-- A page of what was sent or discarded, to be replayed, in the order of the numbers: those beyond `last`.
--
-- newer: true; last (seq); look: how many messages to look at; since, to: when they were finished; states, destination,
-- event_type, key, code, older, newer_than, until: see parts/wanted.sql. Returns their numbers, with the bytes of the payload,
-- and a row without a seq: where it ended (end_seq), if there is more. Index: see parts/known.sql.
\ir parts/known.sql
, found AS (
  SELECT k.seq, k.id, k.destination, k.event_type, k.ended AS state, octet_length(m.payload) AS size,
         coalesce(m.headers ? 'celery-message', false) AS task
  FROM known k
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = k.seq LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = k.seq LIMIT 1) AS t ON true
  CROSS JOIN LATERAL (SELECT k.ended AS state) AS s
  WHERE k.ended IS NOT NULL AND k.finished_at >= :since::timestamptz AND k.finished_at <= :to::timestamptz AND
    \ir parts/wanted.sql
)
SELECT seq, id, destination, event_type, state, size, task, 1 AS count, NULL::bigint AS end_seq FROM found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, max(seq) FILTER (WHERE place = :look::integer) FROM seen
ORDER BY seq
