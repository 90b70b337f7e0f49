WITH RECURSIVE unkeyed_found(destination) AS (
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
      AND outbox_messages.destination > unkeyed_found.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_2)s::INTEGER
  ) AS anon_1
  FROM unkeyed_found
  WHERE unkeyed_found.destination IS NOT NULL
), keyed_found(destination) AS (
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.key IS NOT NULL
    ORDER BY outbox_messages.destination
    LIMIT %(param_5)s::INTEGER
  ) AS destination
  UNION ALL
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.key IS NOT NULL
      AND outbox_messages.destination > keyed_found.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_6)s::INTEGER
  ) AS anon_2
  FROM keyed_found
  WHERE keyed_found.destination IS NOT NULL
), picked AS (
  SELECT unkeyed.id AS id
  FROM (
    SELECT due.id AS id
    FROM (
      SELECT unkeyed_found.destination AS destination
      FROM unkeyed_found
      WHERE unkeyed_found.destination != all(%(known)s::TEXT[])
      LIMIT %(param_3)s::INTEGER
    ) AS unknown
    JOIN LATERAL (
      SELECT outbox_messages.id AS id
      FROM outbox_messages
      WHERE outbox_messages.status = 'pending'
        AND outbox_messages.key IS NULL
        AND outbox_messages.status = 'pending'
        AND outbox_messages.locked_until <= now() - %(grace)s * interval '1 second'
        AND outbox_messages.destination = unknown.destination
      ORDER BY outbox_messages.priority, outbox_messages.locked_until
      LIMIT %(param_4)s::INTEGER
      FOR UPDATE SKIP LOCKED
    ) AS due ON true
  ) AS unkeyed
  UNION ALL
  SELECT keyed.id AS id
  FROM (
    SELECT due.id AS id
    FROM (
      SELECT keyed_found.destination AS destination
      FROM keyed_found
      WHERE keyed_found.destination != all(%(known)s::TEXT[])
      LIMIT %(param_7)s::INTEGER
    ) AS unknown
    JOIN LATERAL (
      SELECT outbox_messages.id AS id
      FROM outbox_messages
      WHERE outbox_messages.key IS NOT NULL
        AND outbox_messages.status = 'pending'
        AND outbox_messages.locked_until <= now() - %(grace)s * interval '1 second'
        AND outbox_messages.destination = unknown.destination
      ORDER BY outbox_messages.key, outbox_messages.seq
      LIMIT %(param_8)s::INTEGER
      FOR UPDATE SKIP LOCKED
    ) AS due ON true
  ) AS keyed
)
UPDATE outbox_messages
SET last_error_code=%(last_error_code)s::VARCHAR,
  last_error=format(%(format_1)s::VARCHAR, quote_literal(left(outbox_messages.destination, %(left_1)s::INTEGER))),
  history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, %(jsonb_build_object_5)s::VARCHAR))) AS JSONB),
  status=%(status)s::VARCHAR,
  lease=NULL,
  begun=false,
  dead_at=clock_timestamp(),
  handed_at=NULL
FROM picked
WHERE outbox_messages.id = ANY (ARRAY[picked.id])
RETURNING outbox_messages.seq, CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.destination, outbox_messages.event_type, outbox_messages.attempts, outbox_messages.status, false AS alone, outbox_messages.key, outbox_messages.priority, outbox_messages.last_error_code AS code, outbox_messages.last_error AS error;
-- format_1 = 'no destination %s is configured'
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'dead'
-- jsonb_build_object_4 = 'code'
-- jsonb_build_object_5 = 'unknown_destination'
-- last_error_code = 'unknown_destination'
-- left_1 = 100
-- param_1 = 1
-- param_2 = 1
-- param_3 = 100
-- param_4 = 100
-- param_5 = 1
-- param_6 = 1
-- param_7 = 100
-- param_8 = 100
-- status = 'dead'
