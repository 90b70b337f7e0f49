WITH RECURSIVE walk(name, hop) AS ((
  SELECT outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) AS name, %(param_3)s::INTEGER AS hop
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
    AND outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) > %(past)s::VARCHAR
  ORDER BY outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error)
  LIMIT %(param_4)s::INTEGER
) UNION ALL SELECT following.name AS name, walk.hop + %(hop_1)s::INTEGER AS anon_1 FROM walk JOIN LATERAL (
  SELECT outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) AS name
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
    AND outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) > walk.name
  ORDER BY outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error)
  LIMIT %(param_5)s::INTEGER
) AS following ON true WHERE walk.hop < %(most)s::INTEGER)
SELECT walk.name AS "group", last.id, last.destination, last.event_type, last.last_error_code, last.last_error, last.dead_at, CASE
    WHEN (%(destination)s::VARCHAR IS NULL OR last.destination = %(destination)s::VARCHAR) THEN (
  SELECT outbox_messages.dead_at
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
    AND outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) = walk.name
  ORDER BY outbox_messages.dead_at
  LIMIT %(param_1)s::INTEGER
) END AS first_at, CASE
    WHEN (%(destination)s::VARCHAR IS NULL OR last.destination = %(destination)s::VARCHAR) THEN (
  SELECT count(*) AS count_1
  FROM (
    SELECT outbox_messages.id AS id
    FROM outbox_messages
    WHERE outbox_messages.status = 'dead'
      AND outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) = walk.name
    LIMIT %(param_2)s::INTEGER
  ) AS "some"
) END AS count
FROM walk
JOIN LATERAL (
  SELECT outbox_messages.id AS id, outbox_messages.destination AS destination, outbox_messages.event_type AS event_type, outbox_messages.last_error_code AS last_error_code, left(outbox_messages.last_error, %(left_1)s::INTEGER) AS last_error, outbox_messages.dead_at AS dead_at
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
    AND outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) = walk.name
  ORDER BY outbox_messages.dead_at DESC
  LIMIT %(param_6)s::INTEGER
) AS last ON true
ORDER BY walk.name;
-- hop_1 = 1
-- left_1 = 300
-- param_1 = 1
-- param_2 = 100000
-- param_3 = 1
-- param_4 = 1
-- param_5 = 1
-- param_6 = 1
