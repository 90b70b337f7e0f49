UPDATE outbox_messages
SET locked_until=clock_timestamp(),
  lease=NULL
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID
  AND outbox_messages.destination = %(target)s::VARCHAR
  AND outbox_messages.begun IS false
  AND (EXISTS (
  SELECT outbox_destinations.name
  FROM outbox_destinations
  WHERE outbox_destinations.name = %(target)s::VARCHAR
    AND (outbox_destinations.paused_at IS NOT NULL OR outbox_destinations.opened_at IS NOT NULL AND outbox_destinations.probe IS DISTINCT FROM %(token)s::UUID)
))
RETURNING outbox_messages.id;
