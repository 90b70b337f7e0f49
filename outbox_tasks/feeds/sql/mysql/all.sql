-- What is there, committed or not: run it at READ UNCOMMITTED, before look.sql. Whoever wrote a row before another one
-- began to write is seen here, if the other one has a number up to `high`.
--
-- after; high: numbers. most: rows.
SELECT number, ordering_key
FROM :schema.outbox_feed
WHERE number > :after AND number <= :high
ORDER BY number
LIMIT :most
