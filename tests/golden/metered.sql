UPDATE outbox_destinations
SET allowance=(bucket.level - bucket.granted),
  metered_at=clock_timestamp()
FROM (
  SELECT outbox_destinations.name AS name, least(greatest(metered.rate, %(greatest_1)s), coalesce(outbox_destinations.allowance + metered.rate * CAST(EXTRACT(epoch FROM clock_timestamp() - outbox_destinations.metered_at) AS FLOAT), greatest(metered.rate, %(greatest_1)s))) AS level, floor(least(metered.size, least(greatest(metered.rate, %(greatest_1)s), coalesce(outbox_destinations.allowance + metered.rate * CAST(EXTRACT(epoch FROM clock_timestamp() - outbox_destinations.metered_at) AS FLOAT), greatest(metered.rate, %(greatest_1)s))))) AS granted
  FROM json_to_recordset(CAST(%(metered)s::VARCHAR AS JSON)) AS metered(destination TEXT, rate FLOAT, size INTEGER)
  JOIN outbox_destinations ON outbox_destinations.name = metered.destination
  ORDER BY outbox_destinations.name
  FOR UPDATE OF outbox_destinations
) AS bucket
WHERE outbox_destinations.name = bucket.name
RETURNING outbox_destinations.name, CAST(bucket.granted AS INTEGER) AS granted;
-- greatest_1 = 1.0
