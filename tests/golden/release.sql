UPDATE outbox_messages
SET locked_until=(clock_timestamp() + %(hold)s * interval '1 second'),
  lease=NULL
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID
  AND outbox_messages.begun = false
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
