UPDATE outbox_messages
SET payload=decode(run.data, 'base64'),
  content_type=run.content_type,
  headers=run.headers,
  attempts=(outbox_messages.attempts - %(attempts_1)s::INTEGER),
  last_error_code=run.code,
  last_error=run.error,
  history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, outbox_messages.attempts, %(jsonb_build_object_5)s::VARCHAR, run.code, %(jsonb_build_object_6)s::VARCHAR, left(run.error, %(left_1)s::INTEGER), %(jsonb_build_object_7)s::VARCHAR, outbox_messages.locked_by))) AS JSONB),
  locked_until=(clock_timestamp() + run.wait * interval '1 second'),
  lease=NULL,
  begun=false,
  deliver_at=(clock_timestamp() + run.wait * interval '1 second'),
  handed_at=NULL
FROM json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, wait FLOAT, data TEXT, headers JSONB, content_type TEXT, code TEXT, error TEXT)
WHERE outbox_messages.id = ANY (ARRAY[run.id])
  AND outbox_messages.lease = run.token
  AND outbox_messages.begun = true
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING CAST(outbox_messages.id AS TEXT) AS id;
-- attempts_1 = 1
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'retried'
-- jsonb_build_object_4 = 'attempt'
-- jsonb_build_object_5 = 'code'
-- jsonb_build_object_6 = 'error'
-- jsonb_build_object_7 = 'by'
-- left_1 = 300
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
