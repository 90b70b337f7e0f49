-- Records that all messages of a bundle were sent. Returns a row if the lease was still there.
--
-- token; destination; count: how many messages it has. That the send has begun is not asked for: a crash of the server
-- may have undone that.
WITH done AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND l.destination = :destination::text AND cardinality(l.seqs) = :count::integer
    AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING l.seqs, l.keys, l.destination, l.holder
), recovered AS (
  \ir parts/recovered.sql
  AND EXISTS (SELECT FROM done)
), freed AS (
  SELECT :schema.outbox_free(destination, keys) FROM done
)
INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
SELECT min(s), 'sent', count(*), done.destination, done.holder, range_agg(int8range(s, s, '[]'))
FROM done CROSS JOIN freed CROSS JOIN LATERAL unnest(done.seqs) AS s
GROUP BY done.destination, done.holder, s >> 16  -- close together: see outbox_archive
RETURNING count
