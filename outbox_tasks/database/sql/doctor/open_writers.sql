-- The open transactions that have written to this outbox, the longest first: pid (null: a prepared one), role, application, age
-- (seconds; null: our role may not see it), and holds: whether a message waits for it, so that none of its key overtakes another.
-- place: see parts/ours.sql; destination, key, seq: of the message (null: of none). See outbox_open_writers for the marks.
WITH ours AS (
\ir parts/ours.sql
), last AS MATERIALIZED (
  SELECT last_value - 1 + is_called::integer AS seq FROM :schema.outbox_seq
), writer AS (
  SELECT max(l.pid) AS pid,
         coalesce(bool_or(l.mode = 'ShareLock' AND l.classid::bigint >> 8 IN (
                            :schema.outbox_all_keys(), :schema.outbox_key_class(:destination::text, :key::text))
                          AND last.seq - ((last.seq - ((l.classid::bigint & 255) << 32 | l.objid::bigint)) & 1099511627775) < :seq::bigint)
                    FILTER (WHERE l.locktype = 'advisory' AND l.objsubid = 1), false) AS holds
  FROM pg_locks l CROSS JOIN last
  WHERE l.database IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  GROUP BY l.virtualtransaction
  HAVING bool_or(l.mode = 'RowExclusiveLock' AND l.relation = (SELECT oid FROM ours WHERE relname = 'outbox_ready'))
)
SELECT w.pid, a.usename AS role, a.application_name AS application,
       date_part('epoch', clock_timestamp() - a.xact_start) AS age, w.holds
FROM writer w LEFT JOIN pg_stat_activity a ON a.pid = w.pid
WHERE w.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY w.holds DESC, a.xact_start
