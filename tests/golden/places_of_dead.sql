WITH RECURSIVE place(name, hop) AS ((
  SELECT outbox_messages.destination AS name, %(param_1)s::INTEGER AS hop
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
  ORDER BY outbox_messages.destination
  LIMIT %(param_2)s::INTEGER
) UNION ALL SELECT following.name AS name, place.hop + %(hop_1)s::INTEGER AS anon_1 FROM place JOIN LATERAL (
  SELECT outbox_messages.destination AS name
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
    AND outbox_messages.destination > place.name
  ORDER BY outbox_messages.destination
  LIMIT %(param_3)s::INTEGER
) AS following ON true)
SELECT clock.now, place.name
FROM (SELECT clock_timestamp() AS now) AS clock LEFT OUTER
JOIN place ON true;
-- hop_1 = 1
-- param_1 = 1
-- param_2 = 1
-- param_3 = 1
