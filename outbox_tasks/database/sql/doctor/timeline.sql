-- The database's timeline: `now`, as the relay knows it, the one `before`, since when it has `changed`, and whether that is still
-- worth a word. fresh: seconds for which it is. See report/timeline.sql.
SELECT h.facts ->> 'timeline' AS timeline, h.facts ->> 'before' AS before, h.facts ->> 'changed' AS changed,
       concat((SELECT system_identifier FROM pg_control_system()), '/', left(pg_walfile_name(pg_current_wal_lsn()), 8)) AS now,
       coalesce((h.facts ->> 'changed')::timestamptz > now() - :fresh::float * interval '1 second', false) AS fresh
FROM :schema.outbox_heartbeats h WHERE h.name = 'server'
