WITH seen AS MATERIALIZED (
  SELECT outbox_messages.id AS id, outbox_messages.seq AS seq, outbox_messages.destination AS destination, outbox_messages.key AS key, outbox_messages.event_type AS event_type, outbox_messages.attempts AS attempts, outbox_messages.last_error_code AS last_error_code, outbox_messages.last_error AS last_error, outbox_messages.created_at AS created_at, outbox_messages.locked_by AS locked_by, CASE
      WHEN (outbox_messages.status = 'dead') THEN 'dead'
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
      WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
      WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
      WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
      WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
      ELSE 'pending' END AS state, outbox_messages.locked_until AS locked_until, outbox_messages.dead_at AS dead_at
  FROM outbox_messages
  WHERE outbox_messages.status = 'dead'
    AND outbox_error_group(outbox_messages.destination, outbox_messages.event_type, outbox_messages.last_error_code, outbox_messages.last_error) = %(place)s::VARCHAR
    AND outbox_messages.dead_at <= %(until)s::TIMESTAMP WITH TIME ZONE
    AND (outbox_messages.dead_at, outbox_messages.id) > (%(time)s::TIMESTAMP WITH TIME ZONE, %(last)s::UUID)
  ORDER BY outbox_messages.dead_at, outbox_messages.id
  LIMIT %(look)s::INTEGER
)
SELECT last.time, last.last, found.id, found.dead_at
FROM (SELECT 1) AS always LEFT OUTER
JOIN (
  SELECT seen.dead_at AS time, seen.id AS last
  FROM seen
  WHERE (
    SELECT count(*) >= %(look)s::INTEGER AS anon_1
    FROM seen
  )
  ORDER BY seen.dead_at DESC, seen.id DESC
  LIMIT %(param_1)s::INTEGER
) AS last ON true LEFT OUTER
JOIN (
  SELECT seen.id AS id, seen.dead_at AS dead_at
  FROM seen
  WHERE (%(states)s::TEXT[] IS NULL OR seen.state = ANY (%(states)s::TEXT[]))
    AND (%(destination)s::VARCHAR IS NULL OR seen.destination = %(destination)s::VARCHAR)
    AND (%(pattern)s::VARCHAR IS NULL OR seen.event_type LIKE %(pattern)s::VARCHAR)
    AND (%(key)s::VARCHAR IS NULL OR seen.key = %(key)s::VARCHAR)
    AND (%(code)s::VARCHAR IS NULL OR seen.last_error_code = %(code)s::VARCHAR)
    AND (CAST(%(older)s AS FLOAT) IS NULL OR seen.created_at <= %(until)s::TIMESTAMP WITH TIME ZONE - CAST(%(older)s AS FLOAT) * interval '1 second')
    AND (CAST(%(newer)s AS FLOAT) IS NULL OR seen.created_at >= %(until)s::TIMESTAMP WITH TIME ZONE - CAST(%(newer)s AS FLOAT) * interval '1 second')
) AS found ON true
ORDER BY found.dead_at, found.id;
-- attempts_1 = 0
-- attempts_2 = 0
-- param_1 = 1
