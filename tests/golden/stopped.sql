DELETE FROM outbox_heartbeats
WHERE outbox_heartbeats.name = %(name)s::VARCHAR
  AND (outbox_heartbeats.facts ->> %(facts_1)s::TEXT) = %(started)s::VARCHAR;
-- facts_1 = 'started'
