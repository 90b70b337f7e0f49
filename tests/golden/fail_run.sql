WITH ended AS (UPDATE outbox_messages SET last_error_code=run.code, last_error=run.error, history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, outbox_messages.attempts, %(jsonb_build_object_5)s::VARCHAR, run.code, %(jsonb_build_object_6)s::VARCHAR, left(run.error, %(left_1)s::INTEGER), %(jsonb_build_object_7)s::VARCHAR, outbox_messages.locked_by, %(jsonb_build_object_8)s::VARCHAR, run.traceback, %(jsonb_build_object_9)s::VARCHAR, run.ran))) AS JSONB), status=%(param_1)s::VARCHAR, locked_until=clock_timestamp(), lease=NULL, begun=false, dead_at=clock_timestamp(), handed_at=NULL FROM json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, code TEXT, error TEXT, traceback TEXT, ran FLOAT) WHERE outbox_messages.id = ANY (ARRAY[run.id]) AND outbox_messages.lease = run.token AND outbox_messages.begun = true AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_2)s::VARCHAR RETURNING CAST(outbox_messages.id AS TEXT) AS id), following AS (INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, content_type, payload, headers, locked_until, priority, latest, lease) SELECT row.id AS id, row.event_type AS event_type, row.aggregate_type AS aggregate_type, row.aggregate_id AS aggregate_id, row.destination AS destination, row.key AS key, row.content_type AS content_type, coalesce(convert_to(row.text, 'UTF8'), decode(row.data, 'base64')) AS coalesce_1, coalesce(row.headers, CAST('{}' AS JSONB)) AS coalesce_2, coalesce(row.deliver_at, clock_timestamp() + coalesce(row.delay, 0) * interval '1 second') AS coalesce_3, CASE WHEN (row.priority = 'high') THEN 1 WHEN (row.priority = 'low') THEN -1 ELSE 0 END AS anon_1, coalesce(row.latest, false) AS coalesce_4, row.lease AS lease FROM json_to_recordset(CAST(%(row)s::VARCHAR AS JSON)) AS row(id UUID, event_type TEXT, aggregate_type TEXT, aggregate_id TEXT, destination TEXT, key TEXT, text TEXT, data TEXT, content_type TEXT, headers JSONB, deliver_at TIMESTAMP WITH TIME ZONE, delay FLOAT, priority TEXT, latest BOOLEAN, lease UUID) WHERE EXISTS (
  SELECT ended.id
  FROM ended
))
SELECT ended.id
FROM ended;
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'dead'
-- jsonb_build_object_4 = 'attempt'
-- jsonb_build_object_5 = 'code'
-- jsonb_build_object_6 = 'error'
-- jsonb_build_object_7 = 'by'
-- jsonb_build_object_8 = 'traceback'
-- jsonb_build_object_9 = 'ran'
-- left_1 = 300
-- param_1 = 'dead'
-- param_2 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
