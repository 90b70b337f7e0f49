WITH found AS (
  SELECT outbox_messages.id AS id
  FROM outbox_messages
  WHERE outbox_messages.handed_at IS NOT NULL
    AND NOT outbox_messages.begun
    AND outbox_messages.destination = %(target)s::VARCHAR
    AND outbox_messages.locked_until > now()
    AND outbox_messages.handed_at < %(before)s::TIMESTAMP WITH TIME ZONE - %(sure)s * power(%(power_1)s::INTEGER, -greatest(outbox_messages.outages, %(greatest_1)s::INTEGER)) * interval '1 second'
    AND CASE
      WHEN (CAST(%(queue)s::VARCHAR AS TEXT) IS NULL) THEN true
      ELSE coalesce(CASE WHEN (outbox_envelope((outbox_messages.headers ->> 'celery-message')) IS NOT NULL) THEN coalesce(outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{declare,0,queue,name}', CASE WHEN ((outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{exchange}') = '') THEN outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{routing_key}' END, '') END, %(made)s::VARCHAR) = %(queue)s::VARCHAR END
  ORDER BY outbox_messages.locked_until
  LIMIT %(param_1)s::INTEGER
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_messages
SET locked_until=clock_timestamp()
FROM found
WHERE outbox_messages.id = ANY (ARRAY[found.id]);
-- greatest_1 = -6
-- param_1 = 10000
-- power_1 = 2
