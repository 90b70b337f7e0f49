-- Takes messages that have been due for `grace` seconds for destinations that are not `known`, to be buried in the same
-- transaction. Writers may know of a destination before the relay does. most: how many.
WITH RECURSIVE place AS (
  (SELECT destination FROM :schema.outbox_ready WHERE key IS NULL ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NULL AND r.destination > place.destination
          ORDER BY r.destination LIMIT 1)
  FROM place WHERE place.destination IS NOT NULL
), keyed AS (
  (SELECT destination FROM :schema.outbox_ready WHERE key IS NOT NULL ORDER BY destination LIMIT 1)
  UNION ALL
  SELECT (SELECT r.destination FROM :schema.outbox_ready r WHERE r.key IS NOT NULL AND r.destination > keyed.destination
          ORDER BY r.destination LIMIT 1)
  FROM keyed WHERE keyed.destination IS NOT NULL
), lost AS (
  SELECT r.at FROM place CROSS JOIN LATERAL (
    SELECT ctid AS at FROM :schema.outbox_ready
    WHERE key IS NULL AND destination = place.destination AND since <= now() - :grace::float * interval '1 second'
    ORDER BY priority, xid, seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS r
  WHERE place.destination <> ALL (:known::text[])
  UNION ALL
  SELECT r.at FROM keyed CROSS JOIN LATERAL (
    SELECT ctid AS at FROM :schema.outbox_ready
    WHERE key IS NOT NULL AND destination = keyed.destination AND since <= now() - :grace::float * interval '1 second'
    ORDER BY seq LIMIT :most::integer FOR UPDATE SKIP LOCKED) AS r
  WHERE keyed.destination <> ALL (:known::text[])
), gone AS (
  DELETE FROM :schema.outbox_ready r USING lost WHERE r.ctid = lost.at RETURNING r.*
)
SELECT gone.seq, m.id::text, m.event_type, gone.destination, gone.key, gone.attempts, gone.priority
FROM gone JOIN :schema.outbox_messages m ON m.seq = gone.seq
