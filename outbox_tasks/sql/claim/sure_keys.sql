-- Locks what makes keys busy until the claim ends: whoever ends that then sees what the claim has held. Of what another
-- has locked nobody knows: it may be about to end.
-- leases: tokens; seqs: of messages that run, wait or are dead letters. Returns those that are locked now, as texts.
WITH lease AS (
  SELECT l.token::text AS what FROM :schema.outbox_leases l WHERE l.token = ANY (:leases::uuid[]) FOR KEY SHARE SKIP LOCKED
), run AS (
  SELECT r.seq::text FROM :schema.outbox_runs r WHERE r.seq = ANY (:seqs::bigint[]) FOR KEY SHARE SKIP LOCKED
), wait AS (
  SELECT w.seq::text FROM :schema.outbox_waiting w WHERE w.seq = ANY (:seqs::bigint[]) FOR KEY SHARE SKIP LOCKED
), dead AS (
  SELECT d.seq::text FROM :schema.outbox_dead d WHERE d.seq = ANY (:seqs::bigint[]) FOR KEY SHARE SKIP LOCKED
)
SELECT what FROM lease UNION ALL SELECT seq FROM run UNION ALL SELECT seq FROM wait UNION ALL SELECT seq FROM dead
