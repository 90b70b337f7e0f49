SELECT (
  SELECT outbox_messages.handed_at
  FROM outbox_messages
  WHERE outbox_messages.id = ANY (ARRAY[%(first)s::UUID])
    AND outbox_messages.handed_at IS NOT NULL
    AND NOT outbox_messages.begun
    AND outbox_messages.outages >= 0
) AS head, count(*) FILTER (WHERE "some".handed_at < %(last)s::TIMESTAMP WITH TIME ZONE - %(sure)s * interval '1 second') AS count
FROM (
  SELECT outbox_messages.handed_at AS handed_at, coalesce(outbox_envelope((outbox_messages.headers ->> 'celery-message')) ->> 'priority', '0') != '0' AS apart
  FROM outbox_messages
  WHERE outbox_messages.handed_at IS NOT NULL
    AND NOT outbox_messages.begun
    AND outbox_messages.destination = %(target)s::VARCHAR
    AND coalesce(CASE WHEN (outbox_envelope((outbox_messages.headers ->> 'celery-message')) IS NOT NULL) THEN coalesce(outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{declare,0,queue,name}', CASE WHEN ((outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{exchange}') = '') THEN outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{routing_key}' END, '') END, %(made)s::VARCHAR) = %(queue)s::VARCHAR
  ORDER BY outbox_messages.locked_until
  LIMIT %(param_1)s::INTEGER
) AS "some" HAVING count(*) FILTER (WHERE "some".apart) = %(param_2)s::INTEGER;
-- param_1 = 1000
-- param_2 = 0
