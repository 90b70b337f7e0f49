-- Takes tokens from the bucket of a destination. Time fills it at its rate, up to the tokens of one second, but to one token at least.
-- destination; rate: tokens a second; most: how many tokens are wanted. Returns how many it gets: so many messages may be taken.
WITH bucket AS (
  SELECT d.name, least(greatest(:rate::float, 1), coalesce(
           d.allowance + :rate * date_part('epoch', clock_timestamp() - d.metered_at), greatest(:rate, 1))) AS level
  FROM :schema.outbox_destinations d WHERE d.name = :destination::text FOR UPDATE
)
UPDATE :schema.outbox_destinations d
SET allowance = b.level - floor(least(:most::integer, b.level)), metered_at = clock_timestamp()
FROM bucket b WHERE d.name = b.name
RETURNING floor(least(:most, b.level))::integer AS granted
