-- Remembers which database this is, on which timeline, and since when the server counts. Returns a row if that has changed: code
-- and error say what the database may have lost; null: nothing was known before. Another timeline: a standby has taken over, or a
-- backup was restored. Counts that begin anew: the server has crashed, and what was committed in its last moment may be gone.
INSERT INTO :schema.outbox_heartbeats AS h (name, kind, seen_at, facts)
SELECT 'server', 'server', clock_timestamp(), jsonb_build_object(
  'timeline', concat((SELECT system_identifier FROM pg_control_system()), '/', left(pg_walfile_name(pg_current_wal_lsn()), 8)),
  'counts_since', pg_stat_get_bgwriter_stat_reset_time())
ON CONFLICT (name) DO UPDATE SET
  seen_at = excluded.seen_at,
  facts = h.facts || excluded.facts || CASE WHEN h.facts ->> 'timeline' <> excluded.facts ->> 'timeline'
    THEN jsonb_build_object('code', 'timeline_changed', 'changed', clock_timestamp(), 'before', h.facts ->> 'timeline')
    ELSE '{"code": "database_crashed"}' END
WHERE (h.facts ->> 'timeline', h.facts ->> 'counts_since') IS DISTINCT FROM
      (excluded.facts ->> 'timeline', excluded.facts ->> 'counts_since')
RETURNING h.facts ->> 'code' AS code, CASE h.facts ->> 'code'
  WHEN 'timeline_changed' THEN 'the database is on another timeline (a failover, or a restore); the message may have been delivered before'
  WHEN 'database_crashed' THEN 'the database has crashed; the message may have been delivered before'
END AS error
