-- What a replay changes of messages, in the order of their numbers. seqs. Index: the primary key of outbox_messages.
SELECT m.seq, m.id, m.destination, m.aggregate_id, coalesce(m.headers, '{}')::text AS headers
FROM unnest(:seqs::bigint[]) AS s
CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
ORDER BY s
