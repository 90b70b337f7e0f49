-- Puts messages whose wait is over where a claim takes them from: to ready; those with a key before the others of it.
-- most: how many. Returns how many there were.
WITH due AS (
  DELETE FROM :schema.outbox_waiting w
  WHERE w.seq IN (SELECT seq FROM :schema.outbox_waiting WHERE due <= now() ORDER BY due LIMIT :most::integer
                  FOR UPDATE SKIP LOCKED)
  RETURNING w.*
), first AS (
  INSERT INTO :schema.outbox_held (seq, since, size, attempts, priority, alone, latest, destination, key, free)
  SELECT seq, since, size, attempts, priority, alone, latest, destination, key, true FROM due WHERE key IS NOT NULL
  RETURNING seq
), ready AS (
  INSERT INTO :schema.outbox_ready (seq, since, size, attempts, priority, alone, latest, destination)
  SELECT seq, since, size, attempts, priority, alone, latest, destination FROM due WHERE key IS NULL
  RETURNING seq
)
SELECT (SELECT count(*) FROM first) + (SELECT count(*) FROM ready)
