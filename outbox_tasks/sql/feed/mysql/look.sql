-- The committed rows, by number, with their age in seconds: run it at READ COMMITTED, after all.sql.
--
-- after; high: numbers.
SELECT number, id, ordering_key, timestampdiff(MICROSECOND, created_at, utc_timestamp(6)) / 1000000, message
FROM :schema.outbox_feed
WHERE number > :after AND number <= :high
ORDER BY number
