UPDATE outbox_messages
SET locked_until=(clock_timestamp() + run.hold * interval '1 second')
FROM json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, hold FLOAT)
WHERE outbox_messages.id = ANY (ARRAY[run.id])
  AND outbox_messages.lease = run.token
  AND outbox_messages.begun = true
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING CAST(outbox_messages.lease AS TEXT) AS token;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
