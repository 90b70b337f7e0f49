  -- The keys of a.destination that a dead letter holds up, if a.blocks: `most` of those that stand behind one, with the first one of
  -- each. Messages that a take has not yet put behind it are among the first of ready (fresh), or it is a moment too early.
  WITH fresh AS MATERIALIZED (
    SELECT coalesce(jsonb_object_agg(key, count), '{}') AS of FROM (
      SELECT key, count(*) AS count
      FROM (SELECT key FROM :schema.outbox_ready WHERE destination = a.destination AND key IS NOT NULL
            ORDER BY seq LIMIT 1000) AS r GROUP BY key) AS k
  )
  SELECT d.*, coalesce(((SELECT f.of FROM fresh f) ->> d.key)::bigint, 0) AS fresh
  FROM (
    SELECT k.destination, k.key, d.seq, d.dead_at
    FROM (SELECT destination, key FROM :schema.outbox_keys
          WHERE destination = a.destination AND token IS NULL AND due = 'infinity' LIMIT :most::integer) AS k
    CROSS JOIN LATERAL (SELECT d.seq, d.dead_at FROM :schema.outbox_dead d
                        WHERE d.destination = k.destination AND d.key = k.key ORDER BY d.seq LIMIT 1) AS d) AS d
  WHERE a.blocks AND (
    jsonb_exists((SELECT f.of FROM fresh f), d.key)
    OR EXISTS (SELECT FROM :schema.outbox_held h WHERE h.destination = d.destination AND h.key = d.key AND h.seq > d.seq))
