WITH RECURSIVE walk(name, hop) AS ((
  SELECT outbox_messages.destination AS name, %(param_1)s::INTEGER AS hop
  FROM outbox_messages
  WHERE outbox_messages.status = 'pending'
    AND outbox_messages.key IS NULL
  ORDER BY outbox_messages.destination
  LIMIT %(param_2)s::INTEGER
) UNION ALL SELECT following.name AS name, walk.hop + %(hop_1)s::INTEGER AS anon_3 FROM walk JOIN LATERAL (
  SELECT outbox_messages.destination AS name
  FROM outbox_messages
  WHERE outbox_messages.status = 'pending'
    AND outbox_messages.key IS NULL
    AND outbox_messages.destination > walk.name
  ORDER BY outbox_messages.destination
  LIMIT %(param_3)s::INTEGER
) AS following ON true), seen AS MATERIALIZED (
  SELECT anon_2.id AS id, anon_2.seq AS seq, anon_2.destination AS destination, anon_2.key AS key, anon_2.event_type AS event_type, anon_2.attempts AS attempts, anon_2.last_error_code AS last_error_code, anon_2.last_error AS last_error, anon_2.created_at AS created_at, anon_2.locked_by AS locked_by, anon_2.state AS state, anon_2.locked_until AS locked_until, anon_2.dead_at AS dead_at, anon_2.lane AS lane
  FROM (
    SELECT later.id AS id, later.seq AS seq, later.destination AS destination, later.key AS key, later.event_type AS event_type, later.attempts AS attempts, later.last_error_code AS last_error_code, later.last_error AS last_error, later.created_at AS created_at, later.locked_by AS locked_by, later.state AS state, later.locked_until AS locked_until, later.dead_at AS dead_at, later.lane AS lane
    FROM (
      SELECT walk.name AS name
      FROM walk
      WHERE %(destination)s::VARCHAR IS NULL OR walk.name = %(destination)s::VARCHAR
    ) AS place
    JOIN (SELECT 1::smallint AS priority UNION ALL SELECT 0::smallint AS priority UNION ALL SELECT -1::smallint AS priority) AS lane ON true
    JOIN LATERAL (
      SELECT outbox_messages.id AS id, outbox_messages.seq AS seq, outbox_messages.destination AS destination, outbox_messages.key AS key, outbox_messages.event_type AS event_type, outbox_messages.attempts AS attempts, outbox_messages.last_error_code AS last_error_code, outbox_messages.last_error AS last_error, outbox_messages.created_at AS created_at, outbox_messages.locked_by AS locked_by, CASE
          WHEN (outbox_messages.status = 'dead') THEN 'dead'
          WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
          WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
          WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
          WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
          WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
          ELSE 'pending' END AS state, outbox_messages.locked_until AS locked_until, outbox_messages.dead_at AS dead_at, concat_ws(%(concat_ws_1)s::VARCHAR, %(param_4)s::VARCHAR, lane.priority, place.name) AS lane
      FROM outbox_messages
      WHERE outbox_messages.status = 'pending'
        AND outbox_messages.key IS NULL
        AND outbox_messages.destination = place.name
        AND outbox_messages.priority = lane.priority
        AND outbox_messages.locked_until > now()
      ORDER BY outbox_messages.locked_until
      LIMIT %(look)s::INTEGER
    ) AS later ON true
  ) AS anon_2
  UNION ALL
  SELECT anon_4.id AS id, anon_4.seq AS seq, anon_4.destination AS destination, anon_4.key AS key, anon_4.event_type AS event_type, anon_4.attempts AS attempts, anon_4.last_error_code AS last_error_code, anon_4.last_error AS last_error, anon_4.created_at AS created_at, anon_4.locked_by AS locked_by, anon_4.state AS state, anon_4.locked_until AS locked_until, anon_4.dead_at AS dead_at, anon_4.lane AS lane
  FROM (
    SELECT due.id AS id, due.seq AS seq, due.destination AS destination, due.key AS key, due.event_type AS event_type, due.attempts AS attempts, due.last_error_code AS last_error_code, due.last_error AS last_error, due.created_at AS created_at, due.locked_by AS locked_by, due.state AS state, due.locked_until AS locked_until, due.dead_at AS dead_at, due.lane AS lane
    FROM (
      SELECT walk.name AS name
      FROM walk
      WHERE %(destination)s::VARCHAR IS NULL OR walk.name = %(destination)s::VARCHAR
    ) AS place
    JOIN (SELECT 1::smallint AS priority UNION ALL SELECT 0::smallint AS priority UNION ALL SELECT -1::smallint AS priority) AS lane ON true
    JOIN LATERAL (
      SELECT outbox_messages.id AS id, outbox_messages.seq AS seq, outbox_messages.destination AS destination, outbox_messages.key AS key, outbox_messages.event_type AS event_type, outbox_messages.attempts AS attempts, outbox_messages.last_error_code AS last_error_code, outbox_messages.last_error AS last_error, outbox_messages.created_at AS created_at, outbox_messages.locked_by AS locked_by, CASE
          WHEN (outbox_messages.status = 'dead') THEN 'dead'
          WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
          WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
          WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_3)s::INTEGER)) THEN 'leased'
          WHEN (outbox_messages.attempts > %(attempts_4)s::INTEGER) THEN 'retrying'
          WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
          ELSE 'pending' END AS state, outbox_messages.locked_until AS locked_until, outbox_messages.dead_at AS dead_at, concat_ws(%(concat_ws_2)s::VARCHAR, %(param_5)s::VARCHAR, lane.priority, place.name) AS lane
      FROM outbox_messages
      WHERE outbox_messages.status = 'pending'
        AND outbox_messages.key IS NULL
        AND outbox_messages.destination = place.name
        AND outbox_messages.priority = lane.priority
        AND outbox_messages.locked_until <= now()
      ORDER BY outbox_messages.locked_until DESC
      LIMIT %(look)s::INTEGER
    ) AS due ON true
  ) AS anon_4
)
SELECT looked.looked, looked.cut, looked.back_to, found.id, found.seq, found.destination, found.key, found.event_type, found.attempts, found.last_error_code, found.created_at, found.locked_by, found.state, found.locked_until, found.dead_at, found.last_error
FROM (
  SELECT count(*) AS looked, (
    SELECT count(*) > %(count_1)s::INTEGER AS anon_1
    FROM (
      SELECT seen.lane AS lane
      FROM seen GROUP BY seen.lane HAVING count(*) >= %(look)s::INTEGER
    ) AS "full"
  ) AS cut, min(seen.created_at) FILTER (WHERE seen.lane = %(lane_1)s::VARCHAR) AS back_to
  FROM seen
) AS looked LEFT OUTER
JOIN (
  SELECT seen.id AS id, seen.seq AS seq, seen.destination AS destination, seen.key AS key, seen.event_type AS event_type, seen.attempts AS attempts, seen.last_error_code AS last_error_code, seen.created_at AS created_at, seen.locked_by AS locked_by, seen.state AS state, seen.locked_until AS locked_until, seen.dead_at AS dead_at, left(seen.last_error, %(left_1)s::INTEGER) AS last_error
  FROM seen
  WHERE (%(states)s::TEXT[] IS NULL OR seen.state = ANY (%(states)s::TEXT[]))
    AND (%(destination)s::VARCHAR IS NULL OR seen.destination = %(destination)s::VARCHAR)
    AND (%(pattern)s::VARCHAR IS NULL OR seen.event_type LIKE %(pattern)s::VARCHAR)
    AND (%(key)s::VARCHAR IS NULL OR seen.key = %(key)s::VARCHAR)
    AND (%(code)s::VARCHAR IS NULL OR seen.last_error_code = %(code)s::VARCHAR)
    AND (CAST(%(older)s AS FLOAT) IS NULL OR seen.created_at <= now() - CAST(%(older)s AS FLOAT) * interval '1 second')
    AND (CAST(%(newer)s AS FLOAT) IS NULL OR seen.created_at >= now() - CAST(%(newer)s AS FLOAT) * interval '1 second')
  ORDER BY seen.created_at DESC, seen.seq DESC
  LIMIT %(size)s::INTEGER
) AS found ON true
ORDER BY found.created_at DESC, found.seq DESC;
-- attempts_1 = 0
-- attempts_2 = 0
-- attempts_3 = 0
-- attempts_4 = 0
-- concat_ws_1 = ' '
-- concat_ws_2 = ' '
-- count_1 = 0
-- hop_1 = 1
-- lane_1 = 'newest'
-- left_1 = 300
-- param_1 = 1
-- param_2 = 1
-- param_3 = 1
-- param_4 = 'later'
-- param_5 = 'due'
