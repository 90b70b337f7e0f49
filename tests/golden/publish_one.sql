INSERT INTO outbox_messages (id, event_type, aggregate_type, aggregate_id, destination, key, content_type, payload, headers, locked_until, priority, latest, lease)
SELECT CAST(%(id)s::VARCHAR AS UUID) AS anon_1, %(event_type)s::VARCHAR AS anon_2, %(aggregate_type)s::VARCHAR AS anon_3, %(aggregate_id)s::VARCHAR AS anon_4, %(destination)s::VARCHAR AS anon_5, %(key)s::VARCHAR AS anon_6, %(content_type)s::VARCHAR AS anon_7, CAST(%(payload)s AS BYTEA) AS anon_8, coalesce(CAST(%(headers)s::VARCHAR AS JSONB), CAST('{}' AS JSONB)) AS coalesce_1, coalesce(CAST(%(deliver_at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE), clock_timestamp() + coalesce(CAST(%(delay)s AS FLOAT), 0) * interval '1 second') AS coalesce_2, CASE
    WHEN (%(priority)s::VARCHAR = 'high') THEN 1
    WHEN (%(priority)s::VARCHAR = 'low') THEN -1
    ELSE 0 END AS anon_9, coalesce(CAST(%(latest)s AS BOOLEAN), false) AS coalesce_3, CAST(%(lease)s::VARCHAR AS UUID) AS anon_10;
