-- What was sent or discarded of some numbers, as it is written to files. after, last: the numbers.
SELECT m.id::text, m.seq, m.destination, m.key, m.event_type, s.state, m.payload, m.content_type,
       coalesce(m.headers, '{}')::text AS headers, coalesce(t.attempts, 0) + (s.state = 'sent')::integer AS attempts,
       t.code AS last_error_code, t.error AS last_error, m.aggregate_type, m.aggregate_id,
       (extract(epoch FROM least(greatest(m.created_at, '0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00')) * 1000000)::bigint
         AS created_at,
       (extract(epoch FROM s.at) * 1000000)::bigint AS finished_at, s.holder AS locked_by,
       coalesce(t.history, '[]')::text AS history
FROM (SELECT g.seq, j.state, j.at, j.holder
      FROM :schema.outbox_journal j CROSS JOIN LATERAL unnest(j.seqs) AS r
      CROSS JOIN LATERAL generate_series(greatest(lower(r), :after::bigint + 1), least(upper(r) - 1, :last::bigint)) AS g(seq)
      WHERE j.seqs && int8range(:after + 1, :last, '[]')) AS s
JOIN :schema.outbox_messages m ON m.seq = s.seq
LEFT JOIN :schema.outbox_trouble t ON t.seq = s.seq
