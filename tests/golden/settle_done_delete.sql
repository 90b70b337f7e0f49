DELETE FROM outbox_messages
USING json_to_recordset(CAST(%(ticket)s::VARCHAR AS JSON)) AS ticket(id UUID, attempt INTEGER, state TEXT, code TEXT, error TEXT)
WHERE outbox_messages.id = ANY (ARRAY[ticket.id])
  AND outbox_messages.attempts = ticket.attempt
  AND outbox_messages.lease = %(token)s::UUID
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
