-- Remembers which database this is, and on which timeline: another one after a standby has taken over, or a backup was
-- restored. Returns a row if it is not the one that was known: `before`; null: none was known.
INSERT INTO :schema.outbox_heartbeats AS h (name, kind, seen_at, facts)
SELECT 'server', 'server', clock_timestamp(), jsonb_build_object('timeline', concat(
         (SELECT system_identifier FROM pg_control_system()), '/', left(pg_walfile_name(pg_current_wal_lsn()), 8)))
ON CONFLICT (name) DO UPDATE SET
  seen_at = excluded.seen_at,
  facts = excluded.facts || jsonb_build_object('before', h.facts ->> 'timeline', 'changed', clock_timestamp())
WHERE h.facts ->> 'timeline' <> excluded.facts ->> 'timeline'
RETURNING h.facts ->> 'before' AS before
