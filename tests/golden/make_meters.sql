INSERT INTO outbox_destinations (name)
SELECT wanted.destination
FROM json_to_recordset(CAST(%(wanted)s::VARCHAR AS JSON)) AS wanted(destination TEXT) ON CONFLICT DO NOTHING;
