SELECT asked.destination, CASE
    WHEN (coalesce("some".queue, asked.queue) != '') THEN coalesce("some".queue, asked.queue) END AS queue, count(*) AS count, count(*) FILTER (WHERE "some".ending) AS ending, now() AS now, count(*) FILTER (WHERE "some".outages < 0) AS again, greatest(least(date_part('epoch', now()) - date_part('epoch', min("some".handed_at)), 1e10), -1e10) AS oldest
FROM json_to_recordset(CAST(%(asked)s::VARCHAR AS JSON)) AS asked(destination TEXT, queue TEXT)
JOIN LATERAL (
  SELECT CASE
      WHEN (outbox_envelope((outbox_messages.headers ->> 'celery-message')) IS NOT NULL) THEN coalesce(outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{declare,0,queue,name}', CASE WHEN ((outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{exchange}') = '') THEN outbox_envelope((outbox_messages.headers ->> 'celery-message')) #>> '{routing_key}' END, '') END AS queue, outbox_messages.locked_until < now() + %(soon)s * interval '1 second' AS ending, outbox_messages.outages AS outages, outbox_messages.handed_at AS handed_at
  FROM outbox_messages
  WHERE outbox_messages.handed_at IS NOT NULL
    AND NOT outbox_messages.begun
    AND outbox_messages.destination = asked.destination
  ORDER BY outbox_messages.locked_until
  LIMIT %(param_1)s::INTEGER
) AS "some" ON true GROUP BY asked.destination, CASE
    WHEN (coalesce("some".queue, asked.queue) != '') THEN coalesce("some".queue, asked.queue) END;
-- param_1 = 1000
