WITH moved AS (
  DELETE FROM outbox_messages
  USING json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, state TEXT, code TEXT, error TEXT, value TEXT, ran FLOAT)
  WHERE outbox_messages.id = ANY (ARRAY[run.id])
    AND outbox_messages.lease = run.token
    AND outbox_messages.begun = true
    AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
  RETURNING outbox_messages.seq, outbox_messages.id, outbox_messages.event_type, outbox_messages.aggregate_type, outbox_messages.aggregate_id, outbox_messages.destination, outbox_messages.key, outbox_messages.payload, outbox_messages.content_type, outbox_messages.headers, outbox_messages.attempts AS attempts, coalesce(run.code, outbox_messages.last_error_code) AS last_error_code, coalesce(run.error, outbox_messages.last_error) AS last_error, outbox_messages.created_at, outbox_messages.locked_by, CASE
      WHEN (run.ran IS NOT NULL) THEN CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, 'returned', %(jsonb_build_object_3)s::VARCHAR, outbox_messages.locked_by, %(jsonb_build_object_4)s::VARCHAR, run.value, %(jsonb_build_object_5)s::VARCHAR, run.ran))) AS JSONB)
      ELSE outbox_messages.history END AS history, coalesce(run.state, %(param_2)s::VARCHAR) AS state
), ended AS (INSERT INTO outbox_archive (seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers, attempts, last_error_code, last_error, created_at, locked_by, history, state, finished_at) SELECT moved.seq AS seq, moved.id AS id, moved.event_type AS event_type, moved.aggregate_type AS aggregate_type, moved.aggregate_id AS aggregate_id, moved.destination AS destination, moved.key AS key, moved.payload AS payload, moved.content_type AS content_type, moved.headers AS headers, moved.attempts AS attempts, moved.last_error_code AS last_error_code, moved.last_error AS last_error, moved.created_at AS created_at, moved.locked_by AS locked_by, moved.history AS history, moved.state AS state, clock_timestamp() AS clock_timestamp_1 FROM moved RETURNING CAST(outbox_archive.id AS TEXT) AS id), following AS (INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, content_type, payload, headers, locked_until, priority, latest, lease) SELECT row.id AS id, row.event_type AS event_type, row.aggregate_type AS aggregate_type, row.aggregate_id AS aggregate_id, row.destination AS destination, row.key AS key, row.content_type AS content_type, coalesce(convert_to(row.text, 'UTF8'), decode(row.data, 'base64')) AS coalesce_1, coalesce(row.headers, CAST('{}' AS JSONB)) AS coalesce_2, coalesce(row.deliver_at, clock_timestamp() + coalesce(row.delay, 0) * interval '1 second') AS coalesce_3, CASE WHEN (row.priority = 'high') THEN 1 WHEN (row.priority = 'low') THEN -1 ELSE 0 END AS anon_1, coalesce(row.latest, false) AS coalesce_4, row.lease AS lease FROM json_to_recordset(CAST(%(row)s::VARCHAR AS JSON)) AS row(id UUID, event_type TEXT, aggregate_type TEXT, aggregate_id TEXT, destination TEXT, key TEXT, text TEXT, data TEXT, content_type TEXT, headers JSONB, deliver_at TIMESTAMP WITH TIME ZONE, delay FLOAT, priority TEXT, latest BOOLEAN, lease UUID) WHERE EXISTS (
  SELECT ended.id
  FROM ended
))
SELECT ended.id
FROM ended;
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'by'
-- jsonb_build_object_4 = 'value'
-- jsonb_build_object_5 = 'ran'
-- param_1 = 'off'
-- param_2 = 'sent'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
