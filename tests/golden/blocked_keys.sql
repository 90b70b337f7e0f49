SELECT outbox_messages.destination, outbox_messages.key, CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.event_type, outbox_messages.dead_at AS since, outbox_messages.last_error_code, outbox_messages.last_error, (
  SELECT count(*) AS count_1
  FROM (
    SELECT waiting.id AS id
    FROM outbox_messages AS waiting
    WHERE waiting.destination = outbox_messages.destination
      AND waiting.key = outbox_messages.key
      AND waiting.seq > outbox_messages.seq
      AND waiting.status = 'pending'
    LIMIT %(param_1)s::INTEGER
  ) AS behind
) AS waiting
FROM outbox_messages
WHERE outbox_messages.status = 'dead'
  AND outbox_messages.key IS NOT NULL
  AND outbox_messages.destination = any(%(blocking)s::TEXT[])
  AND NOT (EXISTS (
  SELECT earlier.id
  FROM outbox_messages AS earlier
  WHERE earlier.destination = outbox_messages.destination
    AND earlier.key = outbox_messages.key
    AND earlier.seq < outbox_messages.seq
))
  AND (EXISTS (
  SELECT waiting.id
  FROM outbox_messages AS waiting
  WHERE waiting.destination = outbox_messages.destination
    AND waiting.key = outbox_messages.key
    AND waiting.seq > outbox_messages.seq
    AND waiting.status = 'pending'
))
ORDER BY outbox_messages.dead_at
LIMIT %(size)s::INTEGER;
-- param_1 = 10000
