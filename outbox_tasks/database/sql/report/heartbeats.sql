-- All heartbeats: name, kind, seen_at, age (seconds), facts.
SELECT name, kind, seen_at, date_part('epoch', clock_timestamp() - seen_at) AS age, facts
FROM :schema.outbox_heartbeats ORDER BY name
