WITH RECURSIVE walk(destination, blocks, key, status, since, hop) AS (
  SELECT blocking.destination AS destination, blocking.blocks AS blocks, first.key AS key, first.status AS status, first.since AS since, %(param_1)s::INTEGER AS hop
  FROM json_to_recordset(CAST(%(blocking)s::VARCHAR AS JSON)) AS blocking(destination TEXT, blocks BOOLEAN)
  JOIN LATERAL (
    SELECT outbox_messages.key AS key, outbox_messages.status AS status, CASE
        WHEN (outbox_messages.status = 'dead') THEN NULL
        WHEN (outbox_messages.attempts = %(attempts_1)s::INTEGER AND (outbox_messages.last_error_code = %(last_error_code_1)s::VARCHAR OR outbox_messages.last_error_code = %(last_error_code_2)s::VARCHAR)) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at)
        WHEN (outbox_messages.locked_until <= now()) THEN outbox_messages.locked_until END AS since
    FROM outbox_messages
    WHERE outbox_messages.destination = blocking.destination
      AND outbox_messages.key IS NOT NULL
      AND (blocking.blocks OR outbox_messages.status = 'pending')
    ORDER BY outbox_messages.key, outbox_messages.seq
    LIMIT %(param_2)s::INTEGER
  ) AS first ON true
  UNION ALL
  SELECT walk.destination AS destination, walk.blocks AS blocks, following.key AS key, following.status AS status, following.since AS since, walk.hop + %(hop_1)s::INTEGER AS anon_1
  FROM walk
  JOIN LATERAL (
    SELECT outbox_messages.key AS key, outbox_messages.status AS status, CASE
        WHEN (outbox_messages.status = 'dead') THEN NULL
        WHEN (outbox_messages.attempts = %(attempts_1)s::INTEGER AND (outbox_messages.last_error_code = %(last_error_code_1)s::VARCHAR OR outbox_messages.last_error_code = %(last_error_code_2)s::VARCHAR)) THEN coalesce(outbox_messages.deliver_at, outbox_messages.created_at)
        WHEN (outbox_messages.locked_until <= now()) THEN outbox_messages.locked_until END AS since
    FROM outbox_messages
    WHERE outbox_messages.destination = walk.destination
      AND outbox_messages.key > walk.key
      AND (walk.blocks OR outbox_messages.status = 'pending')
    ORDER BY outbox_messages.key, outbox_messages.seq
    LIMIT %(param_3)s::INTEGER
  ) AS following ON true
  WHERE walk.hop < %(most)s::INTEGER
)
SELECT walk.destination, count(*) AS keys, CASE
    WHEN (min(walk.since) IS NOT NULL) THEN greatest(least(date_part('epoch', now()) - date_part('epoch', min(walk.since)), 1e10), -1e10) END AS oldest, count(*) FILTER (WHERE walk.status = %(status_1)s::VARCHAR AND (EXISTS (
  SELECT waits.id
  FROM outbox_messages AS waits
  WHERE waits.destination = walk.destination
    AND waits.key = walk.key
    AND waits.status = 'pending'
))) AS held_up
FROM walk GROUP BY walk.destination;
-- attempts_1 = 0
-- hop_1 = 1
-- last_error_code_1 = 'lease_expired'
-- last_error_code_2 = 'direct_expired'
-- param_1 = 1
-- param_2 = 1
-- param_3 = 1
-- status_1 = 'dead'
