UPDATE outbox_messages
SET last_error_code=%(last_error_code)s::VARCHAR,
  last_error=%(last_error)s::VARCHAR,
  history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, outbox_messages.attempts, %(jsonb_build_object_5)s::VARCHAR, outbox_messages.locked_by))) AS JSONB),
  locked_until=(clock_timestamp() + run.within * interval '1 second'),
  begun=false,
  handed_at=clock_timestamp()
FROM json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, within FLOAT)
WHERE outbox_messages.id = ANY (ARRAY[run.id])
  AND outbox_messages.lease = run.token
  AND outbox_messages.begun = true
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'requeued'
-- jsonb_build_object_4 = 'attempt'
-- jsonb_build_object_5 = 'by'
-- last_error = 'its worker put it back into the queue'
-- last_error_code = 'requeued'
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
