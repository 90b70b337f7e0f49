WITH RECURSIVE place(destination) AS (
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
      AND outbox_messages.key IS NULL
    ORDER BY outbox_messages.destination
    LIMIT %(param_1)s::INTEGER
  ) AS destination
  UNION ALL
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
      AND outbox_messages.key IS NULL
      AND outbox_messages.destination > place.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_2)s::INTEGER
  ) AS anon_2
  FROM place
  WHERE place.destination IS NOT NULL
)
SELECT date_part('epoch', least((
  SELECT min(due.locked_until) AS min_1
  FROM place
  JOIN (SELECT 1::smallint AS priority UNION ALL SELECT 0::smallint AS priority UNION ALL SELECT -1::smallint AS priority) AS lane ON true
  JOIN LATERAL (
    SELECT outbox_messages.locked_until AS locked_until
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
      AND outbox_messages.key IS NULL
      AND outbox_messages.destination = place.destination
      AND outbox_messages.priority = lane.priority
      AND outbox_messages.locked_until > now()
      AND outbox_messages.locked_until <= now() + %(ahead)s * interval '1 second'
    ORDER BY outbox_messages.locked_until
    LIMIT %(param_3)s::INTEGER
  ) AS due ON true
), (
  SELECT min("some".at) AS min_2
  FROM (
    SELECT CASE
        WHEN (outbox_messages.status = 'pending' AND outbox_messages.locked_until > now() AND outbox_messages.locked_until <= now() + %(ahead)s * interval '1 second') THEN outbox_messages.locked_until END AS at
    FROM outbox_messages
    WHERE outbox_messages.key IS NOT NULL
    LIMIT %(param_4)s::INTEGER
  ) AS "some"
))) - date_part('epoch', clock_timestamp()) AS anon_1;
-- param_1 = 1
-- param_2 = 1
-- param_3 = 1
-- param_4 = 100
