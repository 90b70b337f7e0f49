WITH ended AS (
  DELETE FROM outbox_messages
  USING json_to_recordset(CAST(%(run)s::VARCHAR AS JSON)) AS run(id UUID, token UUID, state TEXT, code TEXT, error TEXT, value TEXT, ran FLOAT)
  WHERE outbox_messages.id = ANY (ARRAY[run.id])
    AND outbox_messages.lease = run.token
    AND outbox_messages.begun = true
    AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
  RETURNING CAST(outbox_messages.id AS TEXT) AS id
), following AS (INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, content_type, payload, headers, locked_until, priority, latest, lease) SELECT row.id AS id, row.event_type AS event_type, row.aggregate_type AS aggregate_type, row.aggregate_id AS aggregate_id, row.destination AS destination, row.key AS key, row.content_type AS content_type, coalesce(convert_to(row.text, 'UTF8'), decode(row.data, 'base64')) AS coalesce_1, coalesce(row.headers, CAST('{}' AS JSONB)) AS coalesce_2, coalesce(row.deliver_at, clock_timestamp() + coalesce(row.delay, 0) * interval '1 second') AS coalesce_3, CASE WHEN (row.priority = 'high') THEN 1 WHEN (row.priority = 'low') THEN -1 ELSE 0 END AS anon_1, coalesce(row.latest, false) AS coalesce_4, row.lease AS lease FROM json_to_recordset(CAST(%(row)s::VARCHAR AS JSON)) AS row(id UUID, event_type TEXT, aggregate_type TEXT, aggregate_id TEXT, destination TEXT, key TEXT, text TEXT, data TEXT, content_type TEXT, headers JSONB, deliver_at TIMESTAMP WITH TIME ZONE, delay FLOAT, priority TEXT, latest BOOLEAN, lease UUID) WHERE EXISTS (
  SELECT ended.id
  FROM ended
))
SELECT ended.id
FROM ended;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
