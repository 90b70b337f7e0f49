-- Records that all messages of a lease were sent: the usual case, and the quickest. Returns a row if the lease was still there: whether
-- more messages of its keys are due. Nothing is returned if the lease is gone or has other messages: then settle.sql decides.
--
-- token; destination; keys: of its messages; count: how many messages it has. Whether the send has begun is not asked: a crash of
-- the server may have undone the begin.
WITH done AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND l.destination = :destination::text AND cardinality(l.seqs) = :count::integer
    AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING l.seqs, l.holder
), recovered AS (
  \ir parts/recovered.sql
  AND EXISTS (SELECT FROM done)
), freed AS (
  DELETE FROM :schema.outbox_keys k
  WHERE k.destination = :destination AND k.key = ANY (:keys::text[]) AND k.token = :token AND EXISTS (SELECT FROM done)
  RETURNING k.key, k.more, k.first
), again AS (
  INSERT INTO :schema.outbox_keys (destination, key, due, more, first)
  SELECT :destination, key, clock_timestamp(), true, first FROM freed WHERE more RETURNING 1
)
INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
SELECT min(s), 'sent', count(*), :destination, done.holder, range_agg(int8range(s, s, '[]'))
FROM done CROSS JOIN LATERAL unnest(done.seqs) AS s
GROUP BY done.holder, s >> 16  -- close together: see outbox_archive
RETURNING (SELECT count(*) FROM again) > 0 AS more
