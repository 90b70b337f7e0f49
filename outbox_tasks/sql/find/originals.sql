-- Messages that were sent or discarded as they are written to files, in the order of their numbers: the columns of an export.
-- seqs. Indexes: the primary keys of outbox_messages; outbox_journal (seqs).
SELECT m.id::text, m.seq, m.destination, m.key, m.event_type, j.state, m.payload, m.content_type,
       coalesce(m.headers, '{}')::text AS headers, coalesce(t.attempts, 0) + (j.state = 'sent')::integer AS attempts,
       t.code AS last_error_code, t.error AS last_error, m.aggregate_type, m.aggregate_id,
       (extract(epoch FROM m.created_at) * 1000000)::bigint AS created_at,
       (extract(epoch FROM j.at) * 1000000)::bigint AS finished_at, j.holder AS locked_by,
       coalesce(t.history, '[]')::text AS history
FROM unnest(:seqs::bigint[]) AS s
CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
CROSS JOIN LATERAL (
  SELECT * FROM :schema.outbox_journal j WHERE j.seqs @> s AND j.first <= s AND j.first >= (s >> 16) << 16 LIMIT 1
) AS j
LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = s LIMIT 1) AS t ON true
ORDER BY s
