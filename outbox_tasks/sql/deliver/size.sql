-- Bytes of the payload of a leased message. token; id.
SELECT octet_length(m.payload)
FROM :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s JOIN :schema.outbox_messages m ON m.seq = s
WHERE l.token = :token::uuid AND m.id = :id::uuid
