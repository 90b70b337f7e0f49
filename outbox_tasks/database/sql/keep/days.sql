-- The days that are not gone, the oldest first: number, date, began_at, ended_at, bytes (with indexes), and the time now.
SELECT d.number, d.date, d.began_at, d.ended_at, clock_timestamp() AS now,
       coalesce((SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
                 WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = s.oid)
                   AND c.relname IN ('outbox_messages_' || d.number, 'outbox_journal_' || d.number)), 0)::bigint AS bytes
FROM :schema.outbox_days d
CROSS JOIN LATERAL (SELECT d.tableoid AS oid) AS s
WHERE d.gone_at IS NULL
ORDER BY d.number
