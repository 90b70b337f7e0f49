-- How many rows are there, and the age of the first in seconds: infinite, if somebody has written such a time.
--
-- most: counts so many at most.
SELECT (SELECT count(*) FROM (SELECT 1 FROM :schema.outbox_feed LIMIT :most) AS first),
  (SELECT date_part('epoch', clock_timestamp()) - date_part('epoch', created_at) FROM :schema.outbox_feed ORDER BY number LIMIT 1)
