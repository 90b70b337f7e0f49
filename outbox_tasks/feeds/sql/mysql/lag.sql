-- How many rows are there, and the age of the first in seconds.
--
-- most: counts so many at most.
SELECT (SELECT count(*) FROM (SELECT 1 FROM :schema.outbox_feed LIMIT :most) AS first),
  (SELECT timestampdiff(MICROSECOND, created_at, utc_timestamp(6)) / 1000000
   FROM :schema.outbox_feed ORDER BY number LIMIT 1)
