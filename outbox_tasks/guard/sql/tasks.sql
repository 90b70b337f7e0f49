-- What the stored tasks among some messages say of their call.
--
-- seqs: numbers of messages; bytes: a larger payload is not read, and null. `compressed`: the payload is.
SELECT m.id, m.event_type AS task, m.destination, m.content_type,
       m.headers ->> 'celery-message' LIKE '%"compression"%' AS compressed,
       CASE WHEN octet_length(m.payload) <= :bytes::integer THEN m.payload END AS payload
FROM :schema.outbox_messages m
WHERE m.seq = ANY(:seqs::bigint[]) AND m.headers ? 'celery-message'
