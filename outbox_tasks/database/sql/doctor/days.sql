-- The numbers of messages: behind (whether the next ones are given out already, or are of a day that is over).
SELECT d.number IS NULL OR coalesce(pg_sequence_last_value(s.oid), 0) < greatest(d.number::bigint << 32, (
         SELECT max(seq) FROM :schema.outbox_messages WHERE seq >= d.number::bigint << 32)) AS behind
FROM (SELECT max(number) AS number FROM :schema.outbox_days) AS d
CROSS JOIN (SELECT tableoid AS oid FROM :schema.outbox_seq) AS s
