WITH free AS (
  SELECT outbox_messages.id AS id
  FROM outbox_messages, json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID)
  WHERE outbox_messages.id = ANY (ARRAY[run.id])
    AND outbox_messages.lease = run.token
    AND outbox_messages.begun = true
  FOR UPDATE OF outbox_messages SKIP LOCKED
)
UPDATE outbox_messages
SET locked_until=clock_timestamp()
FROM free
WHERE outbox_messages.id = ANY (ARRAY[free.id])
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
