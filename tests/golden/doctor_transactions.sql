SELECT pg_catalog.pg_stat_activity.pid, pg_catalog.pg_stat_activity.usename AS role, pg_catalog.pg_stat_activity.application_name AS application, pg_catalog.pg_stat_activity.state, CAST(EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_stat_activity.xact_start) AS FLOAT) AS age, pg_catalog.pg_stat_activity.backend_xmin IS NOT NULL OR pg_catalog.pg_stat_activity.backend_xid IS NOT NULL AS holds, EXISTS (
  SELECT mark.pid
  FROM pg_catalog.pg_locks AS mark
  JOIN pg_catalog.pg_locks AS written ON written.pid = mark.pid
  WHERE mark.pid = pg_catalog.pg_stat_activity.pid
    AND mark.locktype = %(locktype_1)s::VARCHAR
    AND mark.objsubid = %(objsubid_1)s::SMALLINT
    AND mark.mode = %(mode_1)s::VARCHAR
    AND written.relation = (
    SELECT pg_catalog.pg_class.oid
    FROM pg_catalog.pg_class
    WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
      AND pg_table_is_visible(pg_catalog.pg_class.oid)
  )
    AND written.mode = %(mode_2)s::VARCHAR
) AS marks
FROM pg_catalog.pg_stat_activity
WHERE pg_catalog.pg_stat_activity.datname = current_database()
  AND pg_catalog.pg_stat_activity.pid != pg_backend_pid()
  AND pg_catalog.pg_stat_activity.xact_start < clock_timestamp() - %(long)s * interval '1 second'
ORDER BY pg_catalog.pg_stat_activity.xact_start
LIMIT %(param_1)s::INTEGER;
-- locktype_1 = 'advisory'
-- mode_1 = 'ShareLock'
-- mode_2 = 'RowExclusiveLock'
-- objsubid_1 = 2
-- param_1 = 10000
-- relname_1 = 'outbox_messages'
