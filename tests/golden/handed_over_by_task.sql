SELECT "some".destination, "some".event_type AS task, count(*) AS count, greatest(least(date_part('epoch', now()) - date_part('epoch', min("some".handed_at)), 1e10), -1e10) AS oldest
FROM (
  SELECT outbox_messages.destination AS destination, outbox_messages.event_type AS event_type, outbox_messages.handed_at AS handed_at
  FROM outbox_messages
  WHERE outbox_messages.handed_at IS NOT NULL
    AND NOT outbox_messages.begun
  ORDER BY outbox_messages.destination, outbox_messages.handed_at
  LIMIT %(param_1)s::INTEGER
) AS "some" GROUP BY "some".destination, "some".event_type;
-- param_1 = 10000
