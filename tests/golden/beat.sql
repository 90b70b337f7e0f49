INSERT INTO outbox_heartbeats (name, kind, seen_at, facts)
SELECT seen.name, seen.kind, clock_timestamp() - seen.ago * interval '1 second' AS anon_1, seen.facts
FROM json_to_recordset(CAST(%(seen)s::VARCHAR AS JSON)) AS seen(name TEXT, kind TEXT, ago FLOAT, facts JSONB)
WHERE (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
ORDER BY seen.name ON CONFLICT (name) DO
UPDATE
SET kind = excluded.kind,
  seen_at = excluded.seen_at,
  facts = (excluded.facts || CASE WHEN ((outbox_heartbeats.facts ->> %(facts_1)s::TEXT) != (excluded.facts ->> %(facts_2)s::TEXT) AND outbox_heartbeats.seen_at > now() - %(param_2)s * interval '1 second') THEN jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, coalesce(CAST((outbox_heartbeats.facts ->> %(facts_3)s::TEXT) AS INTEGER), %(coalesce_1)s::INTEGER) + %(coalesce_2)s::INTEGER) ELSE '{}'::jsonb END)
WHERE outbox_heartbeats.seen_at <= excluded.seen_at
RETURNING outbox_heartbeats.name;
-- coalesce_1 = 0
-- coalesce_2 = 1
-- facts_1 = 'started'
-- facts_2 = 'started'
-- facts_3 = 'met'
-- jsonb_build_object_1 = 'met'
-- param_1 = 'off'
-- param_2 = 30.0
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
