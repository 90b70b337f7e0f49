-- Writes heartbeats: who is alive, or what has just run. A worker may find a fresh heartbeat of another one under its name:
-- it counts that as `met`: once after a restart, but again and again if two workers have the same name. Several processes
-- report what has run: the newest report counts. Returns the names that were written.
-- seen: JSON rows of name, kind, ago (seconds) and facts; late: seconds after which a heartbeat is not fresh.
INSERT INTO :schema.outbox_heartbeats AS h (name, kind, seen_at, facts)
SELECT s.name, s.kind, clock_timestamp() - s.ago * interval '1 second', s.facts
FROM json_to_recordset(:seen::json) AS s(name text, kind text, ago float, facts jsonb)
WHERE set_config('synchronous_commit', 'off', true) = 'off'
ORDER BY s.name
ON CONFLICT (name) DO UPDATE SET
  kind = excluded.kind, seen_at = excluded.seen_at,
  facts = excluded.facts || CASE
    WHEN h.facts ->> 'started' <> excluded.facts ->> 'started' AND h.seen_at > now() - :late::float * interval '1 second'
    THEN jsonb_build_object('met', coalesce((h.facts ->> 'met')::integer, 0) + 1) ELSE '{}' END
WHERE h.seen_at <= excluded.seen_at
RETURNING h.name
