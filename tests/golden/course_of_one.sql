SELECT outbox_tallies.destination, CAST(floor(date_part('epoch', now()) / CAST(%(width)s AS FLOAT)) - floor(date_part('epoch', outbox_tallies.minute) / CAST(%(width)s AS FLOAT)) AS INTEGER) AS ago, CAST(sum(CASE WHEN (outbox_tallies.outcome IN ('sent', 'handed')) THEN outbox_tallies.count ELSE 0 END) AS BIGINT) AS sent, CAST(sum(CASE WHEN (outbox_tallies.outcome IN ('retry', 'release', 'outage', 'dead')) THEN outbox_tallies.count ELSE 0 END) AS BIGINT) AS failed
FROM outbox_tallies
WHERE outbox_tallies.minute >= to_timestamp(((floor(date_part('epoch', now()) / CAST(%(width)s AS FLOAT)) - %(spans)s::INTEGER) + 1) * %(width)s)
  AND outbox_tallies.minute <= now()
  AND outbox_tallies.destination = %(target)s::VARCHAR GROUP BY outbox_tallies.destination, CAST(floor(date_part('epoch', now()) / CAST(%(width)s AS FLOAT)) - floor(date_part('epoch', outbox_tallies.minute) / CAST(%(width)s AS FLOAT)) AS INTEGER);
