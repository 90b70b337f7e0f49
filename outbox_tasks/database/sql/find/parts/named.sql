-- These messages, with what the journal and the leases say of them.
leased AS MATERIALIZED (
  SELECT s AS seq, l.token, l.locked_until, l.begun_at, l.holder FROM :schema.outbox_leases l CROSS JOIN LATERAL unnest(l.seqs) AS s
), known AS MATERIALIZED (
  SELECT m.seq, m.id, m.destination, m.key, m.event_type, m.created_at, m.deliver_at, j.state AS ended, j.at AS finished_at,
         l.locked_until AS lease_end, l.token AS lease, l.begun_at, coalesce(j.holder, l.holder) AS holder,
         row_number() OVER (ORDER BY j.at DESC NULLS FIRST, m.seq DESC) AS place
  FROM :schema.outbox_messages m
  LEFT JOIN LATERAL (
    SELECT * FROM :schema.outbox_journal j
    WHERE j.seqs @> m.seq AND j.first <= m.seq AND j.first >= (m.seq >> 16) << 16 LIMIT 1
  ) AS j ON true
  LEFT JOIN leased l ON l.seq = m.seq
  WHERE m.id = ANY (:ids::uuid[])
)
