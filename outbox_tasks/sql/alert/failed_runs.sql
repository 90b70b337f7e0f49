-- The supervised tasks that have ended dead since the last look: an application's worker ended them, and sends no alert.
-- Each row has `until`, up to which this looks; there is one without a message if none has died. The first look goes back
-- an hour, and none goes further than `lag` seconds ago, so that the deaths up to then are committed.
-- names: of destinations, a text[]; size: at most so many, the first ones.
SELECT span.until, died.*
FROM (
  SELECT coalesce((SELECT (h.facts ->> 'upto')::timestamptz FROM :schema.outbox_heartbeats h WHERE h.name = 'alerts'),
                  now() - interval '1 hour') AS since,
         now() - :lag::float * interval '1 second' AS until
) AS span
LEFT JOIN LATERAL (
  SELECT each.* FROM unnest(:names::text[]) AS named(name) CROSS JOIN LATERAL (
    SELECT m.id::text, d.destination, d.key, m.event_type, t.attempts, d.dead_at, t.code, left(t.error, 300) AS error
    FROM :schema.outbox_dead d
    JOIN :schema.outbox_trouble t ON t.seq = d.seq
    JOIN :schema.outbox_messages m ON m.seq = d.seq
    WHERE d.destination = named.name AND d.dead_at > span.since AND d.dead_at <= span.until
      AND t.history -> -1 ? 'traceback'  -- only the end of a run notes it
    ORDER BY d.dead_at LIMIT :size::integer
  ) AS each
  ORDER BY each.dead_at LIMIT :size
) AS died ON true
ORDER BY died.dead_at
