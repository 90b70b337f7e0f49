-- Puts messages whose wait is over where a claim takes them from: to ready; those with a key before the others of it. And
-- marks the next held message of keys that others have noted as free: see outbox_free.
-- most: how many. Returns how many there were.
WITH noted AS (
  DELETE FROM :schema.outbox_freed f
  WHERE f.ctid = ANY (ARRAY(SELECT ctid FROM :schema.outbox_freed LIMIT :most::integer FOR UPDATE SKIP LOCKED))
  RETURNING f.destination, f.key
), freed AS (
  SELECT :schema.outbox_free(destination, array_agg(key)) FROM noted GROUP BY destination
), due AS (
  DELETE FROM :schema.outbox_waiting w
  WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM :schema.outbox_waiting WHERE due <= now() ORDER BY due LIMIT :most::integer
                            FOR UPDATE SKIP LOCKED))
  RETURNING w.*
), first AS (
  INSERT INTO :schema.outbox_held (seq, since, size, attempts, priority, alone, latest, destination, key, free)
  SELECT seq, due, size, attempts, priority, alone, latest, destination, key, true FROM due WHERE key IS NOT NULL
  RETURNING seq
), ready AS (
  INSERT INTO :schema.outbox_ready (seq, since, size, attempts, priority, alone, latest, destination)
  SELECT seq, due, size, attempts, priority, alone, latest, destination FROM due WHERE key IS NULL
  RETURNING seq
)
SELECT (SELECT count(*) FROM first) + (SELECT count(*) FROM ready) FROM (SELECT count(*) FROM freed) AS f
