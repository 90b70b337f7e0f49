INSERT INTO outbox_heartbeats (name, kind, seen_at, facts)
SELECT 'server', 'server', clock_timestamp() AS clock_timestamp_1, jsonb_build_object(%(jsonb_build_object_2)s::VARCHAR, concat((
  SELECT CAST(anon_1.system_identifier AS TEXT) AS system_identifier
  FROM pg_control_system() AS anon_1
), %(concat_1)s::VARCHAR, left(pg_walfile_name(pg_current_wal_lsn()), %(left_1)s::INTEGER))) AS jsonb_build_object_1 ON CONFLICT (name) DO
UPDATE
SET seen_at = excluded.seen_at,
  facts = (excluded.facts || jsonb_build_object(%(jsonb_build_object_3)s::VARCHAR, (outbox_heartbeats.facts ->> %(facts_2)s::TEXT), %(jsonb_build_object_4)s::VARCHAR, clock_timestamp()))
WHERE (outbox_heartbeats.facts ->> %(facts_2)s::TEXT) != (excluded.facts ->> %(facts_3)s::TEXT)
RETURNING outbox_heartbeats.facts ->> %(facts_1)s::TEXT AS before;
-- concat_1 = '/'
-- facts_1 = 'before'
-- facts_2 = 'timeline'
-- facts_3 = 'timeline'
-- jsonb_build_object_2 = 'timeline'
-- jsonb_build_object_3 = 'before'
-- jsonb_build_object_4 = 'changed'
-- left_1 = 8
