-- Takes tokens from the buckets of destinations. Time fills a bucket at its rate, up to the tokens of one second, but to one token at
-- least. metered: JSON rows of destination, rate (tokens a second), and size: how many tokens are wanted. Returns how many each gets:
-- so many messages may be taken.
WITH bucket AS (
  SELECT d.name, m.size, least(greatest(m.rate, 1), coalesce(
           d.allowance + m.rate * date_part('epoch', clock_timestamp() - d.metered_at), greatest(m.rate, 1))) AS level
  FROM json_to_recordset(:metered::json) AS m(destination text, rate float, size integer)
  JOIN :schema.outbox_destinations d ON d.name = m.destination
  ORDER BY d.name FOR UPDATE OF d
)
UPDATE :schema.outbox_destinations d
SET allowance = b.level - floor(least(b.size, b.level)), metered_at = clock_timestamp()
FROM bucket b WHERE d.name = b.name
RETURNING d.name, floor(least(b.size, b.level))::integer AS granted
