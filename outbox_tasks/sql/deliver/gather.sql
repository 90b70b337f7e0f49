-- Makes one lease of several that were not begun, so that their messages begin together: see worker/gather.py.
--
-- token: the new one; tokens: theirs; destination. A lease that is gone, or has run out, is left out.
WITH theirs AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = ANY (:tokens::uuid[]) AND l.destination = :destination::text
    AND l.begun_at IS NULL AND l.locked_until > clock_timestamp()
  RETURNING l.*
)
INSERT INTO :schema.outbox_leases (token, locked_until, destination, holder, seqs, keys)
SELECT :token::uuid, min(locked_until), :destination, min(holder), array_agg(seq ORDER BY seq),
       (SELECT array_agg(DISTINCT key) FROM theirs AS t, unnest(t.keys) AS key)
FROM theirs CROSS JOIN LATERAL unnest(theirs.seqs) AS seq
HAVING count(*) > 0
RETURNING cardinality(seqs)
