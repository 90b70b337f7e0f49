WITH tried AS (UPDATE outbox_destinations SET pause_until=(clock_timestamp() + %(hold)s * interval '1 second'), probe=%(token)s::UUID FROM json_to_recordset(CAST(%(asked)s::VARCHAR AS JSON)) AS asked(destination TEXT) WHERE outbox_destinations.name = asked.destination AND outbox_destinations.opened_at IS NOT NULL AND outbox_destinations.paused_at IS NULL AND outbox_destinations.pause_until <= now() RETURNING outbox_destinations.name)
SELECT outbox_destinations.name, tried.name IS NOT NULL AS tried
FROM json_to_recordset(CAST(%(asked)s::VARCHAR AS JSON)) AS asked(destination TEXT)
JOIN outbox_destinations ON outbox_destinations.name = asked.destination LEFT OUTER
JOIN tried ON tried.name = outbox_destinations.name
WHERE outbox_destinations.opened_at IS NOT NULL OR outbox_destinations.paused_at IS NOT NULL;
