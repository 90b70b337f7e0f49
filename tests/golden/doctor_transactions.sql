SELECT pg_catalog.pg_stat_activity.pid, pg_catalog.pg_stat_activity.usename AS role, pg_catalog.pg_stat_activity.application_name AS application, pg_catalog.pg_stat_activity.state, CAST(EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_stat_activity.xact_start) AS FLOAT) AS age, pg_catalog.pg_stat_activity.backend_xmin IS NOT NULL OR pg_catalog.pg_stat_activity.backend_xid IS NOT NULL AS holds, marks.keys, marks.all_keys
FROM pg_catalog.pg_stat_activity
JOIN LATERAL (
  SELECT count(DISTINCT mark.classid) AS keys, coalesce(bool_or(CAST(mark.classid AS BIGINT) = outbox_all_keys()), false) AS all_keys
  FROM pg_catalog.pg_locks AS mark
  WHERE mark.pid = pg_catalog.pg_stat_activity.pid
    AND mark.locktype = %(locktype_1)s::VARCHAR
    AND mark.objsubid = %(objsubid_1)s::SMALLINT
    AND mark.mode = %(mode_1)s::VARCHAR
    AND (EXISTS (
    SELECT written.mode
    FROM pg_catalog.pg_locks AS written
    WHERE written.pid = pg_catalog.pg_stat_activity.pid
      AND written.relation = (
      SELECT pg_catalog.pg_class.oid
      FROM pg_catalog.pg_class
      WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
        AND pg_table_is_visible(pg_catalog.pg_class.oid)
    )
      AND written.mode = %(mode_2)s::VARCHAR
  ))
) AS marks ON true
WHERE pg_catalog.pg_stat_activity.datname = current_database()
  AND pg_catalog.pg_stat_activity.pid != pg_backend_pid()
  AND (clock_timestamp() - pg_catalog.pg_stat_activity.xact_start > %(long)s * interval '1 second' OR marks.all_keys AND clock_timestamp() - pg_catalog.pg_stat_activity.xact_start > %(soon)s * interval '1 second')
ORDER BY pg_catalog.pg_stat_activity.xact_start
LIMIT %(param_1)s::INTEGER;
-- locktype_1 = 'advisory'
-- mode_1 = 'ShareLock'
-- mode_2 = 'RowExclusiveLock'
-- objsubid_1 = 2
-- param_1 = 10000
-- relname_1 = 'outbox_messages'
