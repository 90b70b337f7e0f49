UPDATE outbox_destinations
SET allowance=(outbox_destinations.allowance + spare.size)
FROM json_to_recordset(CAST(%(spare)s::VARCHAR AS JSON)) AS spare(destination TEXT, size INTEGER)
WHERE outbox_destinations.name = spare.destination;
