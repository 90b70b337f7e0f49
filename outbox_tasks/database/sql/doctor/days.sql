-- The days and the numbers of messages: days (partitions that are kept), behind (whether the next numbers are given out already,
-- or are of a day that is over), room (how many locks the server has room for: max_locks_per_transaction for each of its
-- `clients`), clients.
SELECT (SELECT count(*) FROM pg_inherits WHERE inhparent = m.oid) AS days,
       d.number IS NULL OR coalesce(pg_sequence_last_value(s.oid), 0) < greatest(d.number::bigint << 32, (
         SELECT max(seq) FROM :schema.outbox_messages WHERE seq >= d.number::bigint << 32)) AS behind,
       locks.each * locks.clients AS room, locks.clients
FROM (SELECT max(number) AS number FROM :schema.outbox_days) AS d
CROSS JOIN (SELECT tableoid AS oid FROM :schema.outbox_seq) AS s
JOIN pg_class c ON c.oid = s.oid
JOIN pg_class m ON m.relname = 'outbox_messages' AND m.relnamespace = c.relnamespace
CROSS JOIN (SELECT current_setting('max_locks_per_transaction')::bigint AS each,
                   current_setting('max_connections')::bigint
                   + current_setting('max_prepared_transactions')::bigint AS clients) AS locks
