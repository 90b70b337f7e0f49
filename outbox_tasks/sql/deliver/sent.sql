-- Records that all messages of a bundle were sent. Returns a row if the lease was still there.
--
-- token; destination. That the send has begun is not asked for: a crash of the server may have undone that.
WITH done AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND l.destination = :destination::text
    AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING l.seqs, l.keys, l.destination, l.holder
), recovered AS (
  \ir parts/recovered.sql
), freed AS (
  UPDATE :schema.outbox_held h SET free = true
  FROM (SELECT DISTINCT done.destination, k AS key FROM done CROSS JOIN LATERAL unnest(done.keys) AS k) AS k
  CROSS JOIN LATERAL (SELECT n.seq FROM :schema.outbox_held n
                      WHERE n.destination = k.destination AND n.key = k.key ORDER BY n.seq LIMIT 1
                      FOR UPDATE SKIP LOCKED) AS n
  WHERE h.destination = k.destination AND h.key = k.key AND h.seq = n.seq
)
INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
SELECT min(s), 'sent', count(*), done.destination, done.holder, range_agg(int8range(s, s, '[]'))
FROM done CROSS JOIN LATERAL unnest(done.seqs) AS s
GROUP BY done.destination, done.holder, s >> 16  -- close together: see outbox_archive
RETURNING count
