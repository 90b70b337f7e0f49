WITH RECURSIVE unkeyed(destination) AS (
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
      AND outbox_messages.destination > unkeyed.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_2)s::INTEGER
  ) AS anon_1
  FROM unkeyed
  WHERE unkeyed.destination IS NOT NULL
), keyed(destination) AS (
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.key IS NOT NULL
    ORDER BY outbox_messages.destination
    LIMIT %(param_3)s::INTEGER
  ) AS destination
  UNION ALL
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.key IS NOT NULL
      AND outbox_messages.destination > keyed.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_4)s::INTEGER
  ) AS anon_2
  FROM keyed
  WHERE keyed.destination IS NOT NULL
), buried(destination) AS (
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.status = 'dead'
    ORDER BY outbox_messages.destination
    LIMIT %(param_5)s::INTEGER
  ) AS destination
  UNION ALL
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.status = 'dead'
      AND outbox_messages.destination > buried.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_6)s::INTEGER
  ) AS anon_3
  FROM buried
  WHERE buried.destination IS NOT NULL
)
SELECT unkeyed.destination
FROM unkeyed
UNION
SELECT keyed.destination
FROM keyed
UNION
SELECT buried.destination
FROM buried;
-- param_1 = 1
-- param_2 = 1
-- param_3 = 1
-- param_4 = 1
-- param_5 = 1
-- param_6 = 1
