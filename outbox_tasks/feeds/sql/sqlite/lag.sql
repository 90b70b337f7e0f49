-- How many rows are there, and the age of the first in seconds.
--
-- most: counts so many at most.
SELECT (SELECT count(*) FROM (SELECT 1 FROM :schema.outbox_feed LIMIT :most)),
  (SELECT (julianday('now') - julianday(created_at)) * 86400.0 FROM :schema.outbox_feed ORDER BY number LIMIT 1)
