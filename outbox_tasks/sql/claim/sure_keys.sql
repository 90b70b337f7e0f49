-- Locks what makes keys busy until the claim ends: whoever ends that then sees what the claim has held. Of what another
-- has locked nobody knows: it may be about to end.
--
-- destinations, keys: of those that are leased; seqs: of messages that run, wait or are dead letters; since: no lease ends
-- before. Returns what is locked now: the keys of a lease, or the number of a message.
WITH lease AS (
  SELECT l.destination, l.keys FROM :schema.outbox_leases l
  WHERE l.destination = ANY (:destinations::text[]) AND l.keys IS NOT NULL AND l.locked_until >= :since::timestamptz
    AND l.keys && :keys::text[] FOR KEY SHARE SKIP LOCKED
), run AS (
  SELECT r.seq FROM :schema.outbox_runs r WHERE r.seq = ANY (:seqs::bigint[]) FOR KEY SHARE SKIP LOCKED
), wait AS (
  SELECT w.seq FROM :schema.outbox_waiting w WHERE w.seq = ANY (:seqs::bigint[]) FOR KEY SHARE SKIP LOCKED
), dead AS (
  SELECT d.seq FROM :schema.outbox_dead d WHERE d.seq = ANY (:seqs::bigint[]) FOR KEY SHARE SKIP LOCKED
)
SELECT destination, keys, NULL::bigint AS seq FROM lease
UNION ALL SELECT NULL, NULL, seq FROM run UNION ALL SELECT NULL, NULL, seq FROM wait UNION ALL SELECT NULL, NULL, seq FROM dead
