INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, content_type, payload, headers, locked_until, priority, latest, lease)
SELECT row.id, row.event_type, row.aggregate_type, row.aggregate_id, row.destination, row.key, row.content_type, coalesce(convert_to(row.text, 'UTF8'), decode(row.data, 'base64')) AS coalesce_1, coalesce(row.headers, CAST('{}' AS JSONB)) AS coalesce_2, coalesce(row.deliver_at, clock_timestamp() + coalesce(row.delay, 0) * interval '1 second') AS coalesce_3, CASE
    WHEN (row.priority = 'high') THEN 1
    WHEN (row.priority = 'low') THEN -1
    ELSE 0 END AS anon_1, coalesce(row.latest, false) AS coalesce_4, row.lease
FROM json_to_recordset(CAST(%(row)s::VARCHAR AS JSON)) AS row(id UUID, event_type TEXT, aggregate_type TEXT, aggregate_id TEXT, destination TEXT, key TEXT, text TEXT, data TEXT, content_type TEXT, headers JSONB, deliver_at TIMESTAMP WITH TIME ZONE, delay FLOAT, priority TEXT, latest BOOLEAN, lease UUID);
