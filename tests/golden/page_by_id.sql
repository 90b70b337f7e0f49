WITH seen AS MATERIALIZED (
  SELECT anon_1.id AS id, anon_1.seq AS seq, anon_1.destination AS destination, anon_1.key AS key, anon_1.event_type AS event_type, anon_1.attempts AS attempts, anon_1.last_error_code AS last_error_code, anon_1.last_error AS last_error, anon_1.created_at AS created_at, anon_1.locked_by AS locked_by, anon_1.state AS state, anon_1.locked_until AS locked_until, anon_1.dead_at AS dead_at, anon_1.finished_at AS finished_at, anon_1.lane AS lane
  FROM (
    SELECT outbox_messages.id AS id, outbox_messages.seq AS seq, outbox_messages.destination AS destination, outbox_messages.key AS key, outbox_messages.event_type AS event_type, outbox_messages.attempts AS attempts, outbox_messages.last_error_code AS last_error_code, outbox_messages.last_error AS last_error, outbox_messages.created_at AS created_at, outbox_messages.locked_by AS locked_by, CASE
        WHEN (outbox_messages.status = 'dead') THEN 'dead'
        WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now() AND outbox_messages.begun) THEN 'running'
        WHEN (outbox_messages.handed_at IS NOT NULL AND outbox_messages.locked_until > now()) THEN 'handed over'
        WHEN (outbox_messages.lease IS NOT NULL AND outbox_messages.locked_until > now() AND (outbox_messages.begun OR outbox_messages.attempts = %(attempts_1)s::INTEGER)) THEN 'leased'
        WHEN (outbox_messages.attempts > %(attempts_2)s::INTEGER) THEN 'retrying'
        WHEN (outbox_messages.locked_until > now()) THEN 'scheduled'
        ELSE 'pending' END AS state, outbox_messages.locked_until AS locked_until, outbox_messages.dead_at AS dead_at, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at, 'waiting' AS lane
    FROM outbox_messages
    WHERE outbox_messages.id >= %(low)s::UUID
      AND outbox_messages.id <= %(high)s::UUID
    ORDER BY outbox_messages.id DESC FETCH FIRST (%(look)s::INTEGER) ROWS WITH TIES
  ) AS anon_1
  UNION ALL
  SELECT anon_2.id AS id, anon_2.seq AS seq, anon_2.destination AS destination, anon_2.key AS key, anon_2.event_type AS event_type, anon_2.attempts AS attempts, anon_2.last_error_code AS last_error_code, anon_2.last_error AS last_error, anon_2.created_at AS created_at, anon_2.locked_by AS locked_by, anon_2.state AS state, anon_2.locked_until AS locked_until, anon_2.dead_at AS dead_at, anon_2.finished_at AS finished_at, anon_2.lane AS lane
  FROM (
    SELECT outbox_archive.id AS id, outbox_archive.seq AS seq, outbox_archive.destination AS destination, outbox_archive.key AS key, outbox_archive.event_type AS event_type, outbox_archive.attempts AS attempts, outbox_archive.last_error_code AS last_error_code, outbox_archive.last_error AS last_error, outbox_archive.created_at AS created_at, outbox_archive.locked_by AS locked_by, outbox_archive.state AS state, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS locked_until, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS dead_at, outbox_archive.finished_at AS finished_at, 'archived' AS lane
    FROM outbox_archive
    WHERE outbox_archive.id >= %(low)s::UUID
      AND outbox_archive.id <= %(high)s::UUID
    ORDER BY outbox_archive.id DESC FETCH FIRST (%(look)s::INTEGER) ROWS WITH TIES
  ) AS anon_2
), cut AS (
  SELECT part.end_id AS end_id, part.created_at AS reached
  FROM (
    SELECT seen.id AS end_id, seen.created_at AS created_at, row_number() OVER (PARTITION BY seen.lane ORDER BY seen.id DESC) AS number
    FROM seen
  ) AS part
  WHERE part.number = %(look)s::INTEGER
  ORDER BY part.end_id DESC
  LIMIT %(param_1)s::INTEGER
)
SELECT looked.looked, cut.end_id, cut.reached, found.id, found.seq, found.destination, found.key, found.event_type, found.attempts, found.last_error_code, found.created_at, found.locked_by, found.state, found.locked_until, found.dead_at, found.finished_at, found.last_error
FROM (
  SELECT count(*) AS looked
  FROM seen
) AS looked LEFT OUTER
JOIN cut ON true LEFT OUTER
JOIN (
  SELECT "some".id AS id, "some".seq AS seq, "some".destination AS destination, "some".key AS key, "some".event_type AS event_type, "some".attempts AS attempts, "some".last_error_code AS last_error_code, "some".created_at AS created_at, "some".locked_by AS locked_by, "some".state AS state, "some".locked_until AS locked_until, "some".dead_at AS dead_at, "some".finished_at AS finished_at, left("some".last_error, %(left_1)s::INTEGER) AS last_error
  FROM (
    SELECT seen.id AS id, seen.seq AS seq, seen.destination AS destination, seen.key AS key, seen.event_type AS event_type, seen.attempts AS attempts, seen.last_error_code AS last_error_code, seen.last_error AS last_error, seen.created_at AS created_at, seen.locked_by AS locked_by, seen.state AS state, seen.locked_until AS locked_until, seen.dead_at AS dead_at, seen.finished_at AS finished_at, seen.lane AS lane, row_number() OVER (PARTITION BY seen.id ORDER BY seen.finished_at DESC NULLS FIRST) AS copy
    FROM seen LEFT OUTER
    JOIN cut ON true
    WHERE (cut.reached IS NULL OR (seen.id) >= (cut.end_id))
      AND (%(states)s::TEXT[] IS NULL OR seen.state = ANY (%(states)s::TEXT[]))
      AND (%(destination)s::VARCHAR IS NULL OR seen.destination = %(destination)s::VARCHAR)
      AND (%(pattern)s::VARCHAR IS NULL OR seen.event_type LIKE %(pattern)s::VARCHAR)
      AND (%(key)s::VARCHAR IS NULL OR seen.key = %(key)s::VARCHAR)
      AND (%(code)s::VARCHAR IS NULL OR seen.last_error_code = %(code)s::VARCHAR)
      AND (CAST(%(older)s AS FLOAT) IS NULL OR seen.created_at <= now() - CAST(%(older)s AS FLOAT) * interval '1 second')
      AND (CAST(%(newer)s AS FLOAT) IS NULL OR seen.created_at >= now() - CAST(%(newer)s AS FLOAT) * interval '1 second')
  ) AS "some"
  WHERE "some".copy = 1
  ORDER BY "some".id DESC
  LIMIT %(size)s::INTEGER
) AS found ON true
ORDER BY found.id DESC;
-- attempts_1 = 0
-- attempts_2 = 0
-- left_1 = 300
-- param_1 = 1
