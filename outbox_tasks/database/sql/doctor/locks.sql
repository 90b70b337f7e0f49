-- The sessions that hold an advisory lock of this outbox, though their role has no right on the outbox: anybody who may connect
-- can take such a lock. Returns pid, role, application, age (of the session's transaction; null: it has none, or we may not see
-- it), what (waits for the lock). place: the schema, as in keep/alone.sql; destinations: JSON texts.
WITH ours AS (
\ir parts/ours.sql
), place AS (
  SELECT n.nspname AS name FROM pg_namespace n WHERE n.oid = (SELECT relnamespace FROM ours WHERE relname = 'outbox_ready')
), lock AS (
  SELECT hashtextextended(name, 0) AS key, what FROM (
    SELECT quote_ident(place.name) || ', pg_temp keys ' || d AS name, 'takes of messages with keys to ' || d AS what
    FROM place CROSS JOIN json_array_elements_text(:destinations::json) AS d
    UNION ALL
    SELECT 'outbox maintain ' || place.name, 'the maintenance' FROM place
    UNION ALL
    SELECT 'outbox days ' || oid, 'the turn of the day' FROM ours WHERE relname = 'outbox_days'
  ) AS named
), held AS (
  SELECT l.pid, k.what FROM pg_locks l JOIN lock k ON k.key = (l.classid::bigint << 32 | l.objid::bigint)
  WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  UNION ALL
  SELECT DISTINCT l.pid, 'takes of messages with keys' FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ShareLock' AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint >> 24 = (SELECT oid::bigint & 127 FROM ours WHERE relname = 'outbox_seq')
)
SELECT a.pid, a.usename AS role, a.application_name AS application, date_part('epoch', clock_timestamp() - a.xact_start) AS age,
       string_agg(DISTINCT held.what, ', ') AS what
FROM held JOIN pg_stat_activity a ON a.pid = held.pid
WHERE NOT has_any_column_privilege(a.usesysid, (SELECT oid FROM ours WHERE relname = 'outbox_ready'), 'SELECT')
  AND NOT EXISTS (SELECT FROM pg_proc f JOIN place ON f.pronamespace = to_regnamespace(quote_ident(place.name))
                  WHERE f.proname = 'outbox_write_one' AND has_function_privilege(a.usesysid, f.oid, 'EXECUTE'))
GROUP BY a.pid, a.usename, a.application_name, a.xact_start
