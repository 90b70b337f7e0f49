-- Takes messages that have been due for `grace` seconds for destinations that are not `known`, to be buried in the same
-- transaction. Writers may know of a destination before the relay does.
--
-- past: this looks at the `look` destinations after this one, because a writer can name any number. most: so many messages with
-- a key are taken, and so many without. Returns the messages; and one row without a number, with the destination after which
-- the next look begins (an empty text: at the first one).
WITH RECURSIVE place AS (
  SELECT :past::text AS destination, 0 AS n
  UNION ALL
  SELECT least((SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NULL AND r.destination > place.destination
                ORDER BY r.destination LIMIT 1),
               (SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NOT NULL AND r.destination > place.destination
                ORDER BY r.destination LIMIT 1)), n + 1
  FROM place WHERE place.destination IS NOT NULL AND n < :look::integer
), strange AS MATERIALIZED (
  SELECT destination, n FROM place WHERE n > 0 AND destination IS NOT NULL
), lost AS (
  (SELECT r.at FROM strange CROSS JOIN LATERAL (
     SELECT ctid AS at FROM :schema.outbox_ready
     WHERE key IS NULL AND destination = strange.destination AND since <= now() - :grace::float * interval '1 second'
     ORDER BY priority, xid, seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS r
   WHERE strange.destination <> ALL (:known::text[]) LIMIT :most)
  UNION ALL
  (SELECT r.at FROM strange CROSS JOIN LATERAL (
     SELECT ctid AS at FROM :schema.outbox_ready
     WHERE key IS NOT NULL AND destination = strange.destination AND since <= now() - :grace::float * interval '1 second'
     ORDER BY seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS r
   WHERE strange.destination <> ALL (:known::text[]) LIMIT :most)
), gone AS (
  DELETE FROM :schema.outbox_ready r USING lost WHERE r.ctid = lost.at RETURNING r.*
)
SELECT gone.seq, m.id::text, m.event_type, gone.destination, gone.key, gone.attempts, gone.priority
FROM gone JOIN :schema.outbox_messages m ON m.seq = gone.seq
UNION ALL
SELECT NULL, NULL, NULL, coalesce((SELECT destination FROM strange WHERE n = :look), ''), NULL, NULL, NULL
