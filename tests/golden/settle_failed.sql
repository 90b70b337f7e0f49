UPDATE outbox_messages
SET last_error_code=ticket.code,
  last_error=ticket.error,
  status=CASE
    WHEN ticket.dead THEN %(param_1)s::VARCHAR
    ELSE %(param_2)s::VARCHAR END,
  locked_until=(clock_timestamp() + ticket.hold * interval '1 second'),
  lease=CASE
    WHEN ticket.keep THEN outbox_messages.lease END,
  begun=false,
  dead_at=CASE
    WHEN ticket.dead THEN clock_timestamp() END
FROM json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, hold FLOAT, keep BOOLEAN, dead BOOLEAN, code TEXT, error TEXT)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_3)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- param_1 = 'dead'
-- param_2 = 'pending'
-- param_3 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
