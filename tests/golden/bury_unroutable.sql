WITH RECURSIVE found(destination) AS (
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
    ORDER BY outbox_messages.destination
    LIMIT %(param_1)s::INTEGER
  ) AS destination
  UNION ALL
  SELECT (
    SELECT outbox_messages.destination
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
      AND outbox_messages.destination > found.destination
    ORDER BY outbox_messages.destination
    LIMIT %(param_2)s::INTEGER
  ) AS anon_1
  FROM found
  WHERE found.destination IS NOT NULL
), picked AS (
  SELECT due.id AS id
  FROM (
    SELECT found.destination AS destination
    FROM found
    WHERE found.destination != all(%(known)s::TEXT[])
    LIMIT %(param_3)s::INTEGER
  ) AS unknown
  JOIN LATERAL (
    SELECT outbox_messages.id AS id
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
      AND outbox_messages.destination = unknown.destination
      AND outbox_messages.locked_until <= now()
    ORDER BY outbox_messages.locked_until
    LIMIT %(param_4)s::INTEGER
    FOR UPDATE SKIP LOCKED
  ) AS due ON true
)
UPDATE outbox_messages
SET last_error_code=%(last_error_code)s::VARCHAR,
  last_error=format(%(format_1)s::VARCHAR, quote_literal(left(outbox_messages.destination, %(left_1)s::INTEGER))),
  status=%(status)s::VARCHAR,
  lease=NULL,
  dead_at=clock_timestamp()
FROM picked
WHERE outbox_messages.id = ANY (ARRAY[picked.id])
RETURNING outbox_messages.id;
-- format_1 = 'no destination %s is configured'
-- last_error_code = 'unknown_destination'
-- left_1 = 100
-- param_1 = 1
-- param_2 = 1
-- param_3 = 100
-- param_4 = 100
-- status = 'dead'
