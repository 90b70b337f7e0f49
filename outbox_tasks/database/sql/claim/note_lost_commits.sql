-- After the database has lost its last commits (a failover, a restore, a crash): notes on messages that are due that they may have
-- been delivered, because the take and the settle of a send may be lost. A message that has an error keeps it. code, error: what
-- happened; most: how many messages. Returns how many got the note.
WITH due AS (
  (SELECT r.seq FROM :schema.outbox_ready r WHERE r.since <= now() ORDER BY r.seq LIMIT :most::integer)
  UNION ALL
  (SELECT h.seq FROM :schema.outbox_held h WHERE h.since <= now() ORDER BY h.seq LIMIT :most::integer)
  UNION ALL
  SELECT s FROM :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s WHERE l.begun_at IS NULL
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, code, error, history)
  SELECT seq, :code::text, :error::text,
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'noted', 'code', :code::text))
  FROM due ORDER BY seq LIMIT :most::integer
  ON CONFLICT (seq) DO UPDATE SET code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
  WHERE t.code IS NULL
  RETURNING 1
)
SELECT count(*) FROM noted
