SELECT outbox_heartbeats.name, outbox_heartbeats.kind, outbox_heartbeats.seen_at, CAST(EXTRACT(epoch FROM clock_timestamp() - outbox_heartbeats.seen_at) AS FLOAT) AS age, outbox_heartbeats.facts
FROM outbox_heartbeats
ORDER BY outbox_heartbeats.name;
