WITH noted AS (UPDATE outbox_archive SET last_error_code=%(param_1)s::VARCHAR, last_error=format(%(format_2)s::VARCHAR, ticket.attempt, %(holder)s::VARCHAR) FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER) WHERE outbox_archive.id = ANY (ARRAY[ticket.id]) AND outbox_archive.last_error_code IS NULL AND (%(sure)s OR outbox_archive.locked_by != %(holder)s::VARCHAR OR outbox_archive.attempts != ticket.attempt) RETURNING outbox_archive.id)
UPDATE outbox_messages
SET last_error_code=%(last_error_code)s::VARCHAR,
  last_error=format(%(format_1)s::VARCHAR, ticket.attempt, %(holder)s::VARCHAR)
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.last_error_code IS NULL
  AND (%(sure)s OR outbox_messages.locked_by != %(holder)s::VARCHAR OR outbox_messages.attempts != ticket.attempt);
-- format_1 = 'attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered'
-- format_2 = 'attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered'
-- last_error_code = 'unsettled'
-- param_1 = 'unsettled'
