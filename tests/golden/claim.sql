WITH picked AS (
  SELECT due.id AS id, due.attempts AS attempts, due.lease AS lease, due.begun AS begun, due.locked_by AS locked_by, due.last_error_code AS last_error_code, share.ceiling AS ceiling
  FROM json_to_recordset(CAST(%(share)s::VARCHAR AS JSON)) AS share(destination TEXT, size INTEGER, ceiling INTEGER)
  JOIN LATERAL (
    SELECT outbox_messages.id AS id, outbox_messages.attempts AS attempts, outbox_messages.lease AS lease, outbox_messages.begun AS begun, outbox_messages.locked_by AS locked_by, outbox_messages.last_error_code AS last_error_code
    FROM outbox_messages
    WHERE outbox_messages.status = 'pending'
      AND outbox_messages.destination = share.destination
      AND outbox_messages.locked_until <= now()
    ORDER BY outbox_messages.locked_until
    LIMIT share.size
    FOR UPDATE SKIP LOCKED
  ) AS due ON true
)
UPDATE outbox_messages
SET last_error_code=CASE
    WHEN picked.begun THEN %(param_1)s::VARCHAR
    WHEN (picked.attempts >= picked.ceiling) THEN coalesce(outbox_messages.last_error_code, %(coalesce_1)s::VARCHAR)
    WHEN (picked.lease IS NOT NULL) THEN coalesce(outbox_messages.last_error_code, %(coalesce_2)s::VARCHAR)
    ELSE outbox_messages.last_error_code END,
  last_error=CASE
    WHEN picked.begun THEN format(%(format_1)s::VARCHAR, picked.attempts, picked.locked_by)
    WHEN (picked.lease IS NOT NULL) THEN coalesce(outbox_messages.last_error, format(%(format_2)s::VARCHAR, picked.locked_by))
    ELSE outbox_messages.last_error END,
  locked_by=%(holder)s::VARCHAR,
  status=CASE
    WHEN (picked.attempts >= picked.ceiling) THEN %(param_2)s::VARCHAR
    ELSE %(param_3)s::VARCHAR END,
  locked_until=(clock_timestamp() + %(hold)s * interval '1 second'),
  lease=CASE
    WHEN (picked.attempts >= picked.ceiling) THEN NULL
    ELSE %(token)s::UUID END,
  begun=false,
  dead_at=CASE
    WHEN (picked.attempts >= picked.ceiling) THEN clock_timestamp() END
FROM picked
WHERE outbox_messages.id = ANY (ARRAY[picked.id])
RETURNING outbox_messages.seq, CAST(outbox_messages.id AS TEXT) AS id, outbox_messages.destination, outbox_messages.event_type, outbox_messages.attempts, outbox_messages.status, picked.begun OR coalesce(picked.last_error_code = %(last_error_code_1)s::VARCHAR, false) AS alone;
-- coalesce_1 = 'attempts_exhausted'
-- coalesce_2 = 'lease_expired'
-- format_1 = 'attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered'
-- format_2 = 'claimed by %s, and the lease ran out before it was begun'
-- last_error_code_1 = 'unsettled'
-- param_1 = 'unsettled'
-- param_2 = 'dead'
-- param_3 = 'pending'
