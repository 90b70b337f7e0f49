SELECT count(*) AS count_1
FROM (
  SELECT outbox_messages.id AS id
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
  LIMIT %(size)s::INTEGER
) AS found;
