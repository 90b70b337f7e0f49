SELECT octet_length(outbox_messages.payload) AS octet_length_1
FROM outbox_messages, json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID;
