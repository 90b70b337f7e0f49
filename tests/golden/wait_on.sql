WITH found AS (
  SELECT outbox_messages.id AS id
  FROM outbox_messages
  WHERE outbox_messages.handed_at IS NOT NULL
    AND NOT outbox_messages.begun
    AND outbox_messages.destination = %(target)s::VARCHAR
    AND outbox_messages.locked_until < now() + %(soon)s * interval '1 second'
    AND outbox_messages.locked_until < least(outbox_messages.handed_at, now()) + %(within)s * %(param_1)s * interval '1 second'
    AND coalesce(CASE WHEN (outbox_envelope((outbox_messages.headers ->> 'celery-message')) IS NOT NULL) THEN coalesce(outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{declare,0,queue,name}', CASE WHEN ((outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{exchange}') = '') THEN outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{routing_key}' END, '') END, %(made)s::VARCHAR) = %(queue)s::VARCHAR
  ORDER BY outbox_messages.locked_until
  LIMIT %(param_2)s::INTEGER
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_messages
SET locked_until=least(clock_timestamp() + %(within)s * interval '1 second', least(outbox_messages.handed_at, now()) + %(within)s * %(param_1)s * interval '1 second')
FROM found
WHERE outbox_messages.id = ANY (ARRAY[found.id]);
-- param_1 = 8.0
-- param_2 = 10000
