WITH seen AS MATERIALIZED (
  SELECT anon_2.id AS id, anon_2.seq AS seq, anon_2.destination AS destination, anon_2.key AS key, anon_2.event_type AS event_type, anon_2.attempts AS attempts, anon_2.last_error_code AS last_error_code, anon_2.last_error AS last_error, anon_2.created_at AS created_at, anon_2.locked_by AS locked_by, anon_2.state AS state, anon_2.finished_at AS finished_at, anon_2.lane AS lane
  FROM (
    SELECT outbox_archive.id AS id, outbox_archive.seq AS seq, outbox_archive.destination AS destination, outbox_archive.key AS key, outbox_archive.event_type AS event_type, outbox_archive.attempts AS attempts, outbox_archive.last_error_code AS last_error_code, outbox_archive.last_error AS last_error, outbox_archive.created_at AS created_at, outbox_archive.locked_by AS locked_by, outbox_archive.state AS state, outbox_archive.finished_at AS finished_at, 'newest' AS lane
    FROM outbox_archive
    WHERE outbox_archive.id <= %(high)s::UUID
    ORDER BY outbox_archive.id DESC
    LIMIT %(look)s::INTEGER
  ) AS anon_2
  UNION ALL
  SELECT anon_3.id AS id, anon_3.seq AS seq, anon_3.destination AS destination, anon_3.key AS key, anon_3.event_type AS event_type, anon_3.attempts AS attempts, anon_3.last_error_code AS last_error_code, anon_3.last_error AS last_error, anon_3.created_at AS created_at, anon_3.locked_by AS locked_by, anon_3.state AS state, anon_3.finished_at AS finished_at, anon_3.lane AS lane
  FROM (
    SELECT outbox_archive.id AS id, outbox_archive.seq AS seq, outbox_archive.destination AS destination, outbox_archive.key AS key, outbox_archive.event_type AS event_type, outbox_archive.attempts AS attempts, outbox_archive.last_error_code AS last_error_code, outbox_archive.last_error AS last_error, outbox_archive.created_at AS created_at, outbox_archive.locked_by AS locked_by, outbox_archive.state AS state, outbox_archive.finished_at AS finished_at, 'own ids' AS lane
    FROM outbox_archive
    WHERE outbox_archive.id > %(top)s::UUID
    ORDER BY outbox_archive.id DESC
    LIMIT %(look)s::INTEGER
  ) AS anon_3
)
SELECT looked.looked, looked.cut, looked.back_to, found.id, found.seq, found.destination, found.key, found.event_type, found.attempts, found.last_error_code, found.created_at, found.locked_by, found.state, found.finished_at, found.last_error
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
  SELECT seen.id AS id, seen.seq AS seq, seen.destination AS destination, seen.key AS key, seen.event_type AS event_type, seen.attempts AS attempts, seen.last_error_code AS last_error_code, seen.created_at AS created_at, seen.locked_by AS locked_by, seen.state AS state, seen.finished_at AS finished_at, left(seen.last_error, %(left_1)s::INTEGER) AS last_error
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
-- count_1 = 0
-- lane_1 = 'newest'
-- left_1 = 300
