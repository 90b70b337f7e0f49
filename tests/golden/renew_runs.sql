WITH ours AS (
  SELECT outbox_messages.id AS id, outbox_messages.lease AS lease, run.hold AS hold
  FROM outbox_messages, json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, hold FLOAT)
  WHERE outbox_messages.id = ANY (ARRAY[run.id])
    AND outbox_messages.lease = run.token
    AND outbox_messages.begun = true
), free AS (
  SELECT outbox_messages.id AS id, ours.hold AS hold
  FROM outbox_messages, ours
  WHERE outbox_messages.id = ANY (ARRAY[ours.id])
    AND outbox_messages.lease = ours.lease
    AND outbox_messages.begun = true
  FOR UPDATE OF outbox_messages SKIP LOCKED
), renewed AS (UPDATE outbox_messages SET locked_until=(clock_timestamp() + free.hold * interval '1 second') FROM free WHERE outbox_messages.id = ANY (ARRAY[free.id]) AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR RETURNING outbox_messages.lease)
SELECT CAST(ours.lease AS TEXT) AS token, renewed.lease IS NOT NULL AS anon_1
FROM ours LEFT OUTER
JOIN renewed ON renewed.lease = ours.lease;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
