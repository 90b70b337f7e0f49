-- Lets messages of a test go, although others left something under their keys before it: a lease, a run, a dead letter, or what
-- is held. since: the last number before the test. Returns the rows of these keys as they were, for return_keys.sql.
WITH ours AS (
  SELECT DISTINCT m.destination, m.key FROM :schema.outbox_messages m
  WHERE m.seq > :since::bigint AND m.key IS NOT NULL
    AND (EXISTS (SELECT FROM :schema.outbox_ready r WHERE r.destination = m.destination AND r.key IS NOT NULL AND r.seq = m.seq)
         OR EXISTS (SELECT FROM :schema.outbox_held h WHERE h.destination = m.destination AND h.key = m.key AND h.seq = m.seq))
), theirs AS (
  SELECT k.* FROM ours JOIN :schema.outbox_keys k USING (destination, key)
  WHERE k.first <= :since
    AND CASE WHEN k.token IS NULL
             THEN NOT EXISTS (SELECT FROM :schema.outbox_dead d WHERE d.destination = k.destination AND d.key = k.key AND d.seq > :since)
                  AND (EXISTS (SELECT FROM :schema.outbox_dead d WHERE d.destination = k.destination AND d.key = k.key)
                       OR EXISTS (SELECT FROM :schema.outbox_held h
                                  WHERE h.destination = k.destination AND h.key = k.key AND h.seq <= :since))
             ELSE NOT EXISTS (SELECT FROM :schema.outbox_leases l WHERE l.token = k.token AND l.seqs[1] > :since)
                  AND NOT EXISTS (SELECT FROM :schema.outbox_runs r
                                  WHERE r.destination = k.destination AND r.key = k.key AND r.seq > :since) END
  FOR UPDATE OF k SKIP LOCKED
), held AS (
  SELECT t.destination, t.key, min(h.seq) AS first, min(h.since) AS since
  FROM theirs t JOIN :schema.outbox_held h ON h.destination = t.destination AND h.key = t.key AND h.seq > :since GROUP BY t.destination, t.key
), changed AS (
  UPDATE :schema.outbox_keys k SET token = NULL, more = true, first = held.first, due = held.since
  FROM held WHERE k.destination = held.destination AND k.key = held.key
), gone AS (
  DELETE FROM :schema.outbox_keys k USING theirs t
  WHERE k.destination = t.destination AND k.key = t.key AND (k.destination, k.key) NOT IN (SELECT destination, key FROM held)
)
SELECT destination, key, token::text, due::text, first FROM theirs
