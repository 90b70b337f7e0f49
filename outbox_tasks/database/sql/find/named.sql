-- What was sent or discarded, by id, to be replayed. ids. Of several with one id, the last one last. Rows as of archived.sql.
-- Indexes: outbox_messages (id), of each day; outbox_journal (seqs).
SELECT m.seq, m.id, m.destination, m.event_type, j.state, octet_length(m.payload) AS size, 1 AS count,
       coalesce(m.headers ? 'celery-message', false) AS task
FROM :schema.outbox_messages m
CROSS JOIN LATERAL (
  SELECT * FROM :schema.outbox_journal j
  WHERE j.seqs @> m.seq AND j.first <= m.seq AND j.first >= (m.seq >> 16) << 16 LIMIT 1
) AS j
WHERE m.id = ANY (:ids::uuid[])
ORDER BY j.at, m.seq
