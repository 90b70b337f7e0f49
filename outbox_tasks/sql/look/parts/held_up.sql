  -- The keys of a.destination that a dead letter holds up, if a.blocks, of `most` with dead letters: the first one of each.
  -- Messages that a claim has not yet put behind it are among the first of ready (fresh), or it is a moment too early.
  WITH fresh AS MATERIALIZED (
    SELECT coalesce(jsonb_object_agg(key, jsonb_build_array(last, count)), '{}') AS of FROM (
      SELECT key, max(seq) AS last, count(*) AS count
      FROM (SELECT key, seq FROM :schema.outbox_ready WHERE destination = a.destination AND key IS NOT NULL
            ORDER BY seq LIMIT 1000) AS r GROUP BY key) AS k
  )
  SELECT d.*, coalesce((fresh.of -> d.key ->> 1)::bigint, 0) AS fresh
  FROM fresh CROSS JOIN (
    SELECT DISTINCT ON (key) destination, key, seq, dead_at FROM :schema.outbox_dead
    WHERE destination = a.destination AND key IS NOT NULL ORDER BY key, seq LIMIT :most::integer) AS d
  WHERE a.blocks AND (
    (fresh.of -> d.key ->> 0)::bigint > d.seq
    OR EXISTS (SELECT FROM :schema.outbox_held h WHERE h.destination = d.destination AND h.key = d.key AND h.seq > d.seq)
    OR EXISTS (SELECT FROM :schema.outbox_waiting w WHERE w.destination = d.destination AND w.key = d.key AND w.seq > d.seq))
