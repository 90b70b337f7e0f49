WITH copies AS (INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, content_type, headers, created_at, payload, locked_until, deliver_at, priority, history) SELECT row.id AS id, row.event_type AS event_type, row.aggregate_type AS aggregate_type, row.aggregate_id AS aggregate_id, row.destination AS destination, row.key AS key, row.content_type AS content_type, row.headers AS headers, row.created_at AS created_at, decode(row.data, 'base64') AS decode_1, (SELECT clock_timestamp() AS clock_timestamp_1) AS anon_1, (SELECT clock_timestamp() AS clock_timestamp_1) AS anon__1, -1, jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, (SELECT clock_timestamp() AS clock_timestamp_1), %(jsonb_build_object_2)s::VARCHAR, 'replayed', %(jsonb_build_object_3)s::VARCHAR, %(person)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, %(reason)s::VARCHAR, %(jsonb_build_object_5)s::VARCHAR, CAST(row."of" AS TEXT), %(jsonb_build_object_6)s::VARCHAR, %(entry)s::BIGINT))) AS jsonb_build_array_1 FROM json_to_recordset(CAST(%(row)s::VARCHAR AS JSON)) AS row(id UUID, "of" UUID, event_type TEXT, aggregate_type TEXT, aggregate_id TEXT, destination TEXT, key TEXT, content_type TEXT, data TEXT, headers JSONB, created_at TIMESTAMP WITH TIME ZONE) ON CONFLICT (id) DO NOTHING RETURNING CAST(outbox_messages.id AS TEXT) AS id), audited AS (UPDATE outbox_audit SET count=(outbox_audit.count + (
  SELECT count(*) AS count_1
  FROM copies
)), facts=(outbox_audit.facts || %(place)s::JSONB) WHERE outbox_audit.seq = %(entry)s::BIGINT RETURNING outbox_audit.seq)
SELECT copies.id
FROM copies;
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'by'
-- jsonb_build_object_4 = 'why'
-- jsonb_build_object_5 = 'of'
-- jsonb_build_object_6 = 'entry'
