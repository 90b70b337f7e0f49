INSERT INTO outbox_heartbeats (name, kind, seen_at, facts)
SELECT seen.name, seen.kind, clock_timestamp() - seen.ago * interval '1 second' AS anon_1, seen.facts
FROM json_to_recordset(CAST(%(seen)s::VARCHAR AS JSON)) AS seen(name TEXT, kind TEXT, ago FLOAT, facts JSONB)
WHERE (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
ORDER BY seen.name ON CONFLICT (name) DO
UPDATE
SET kind = excluded.kind,
  seen_at = excluded.seen_at,
  facts = excluded.facts
WHERE outbox_heartbeats.seen_at <= excluded.seen_at;
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
