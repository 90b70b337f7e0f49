SELECT pg_catalog.pg_stat_activity.pid, pg_catalog.pg_stat_activity.usename AS role, pg_catalog.pg_stat_activity.application_name AS application, CAST(EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_stat_activity.xact_start) AS FLOAT) AS age
FROM pg_catalog.pg_stat_activity
WHERE pg_catalog.pg_stat_activity.datname = current_database()
  AND pg_catalog.pg_stat_activity.pid != pg_backend_pid()
  AND pg_catalog.pg_stat_activity.backend_xmin IS NOT NULL
ORDER BY age(pg_catalog.pg_stat_activity.backend_xmin) DESC, pg_catalog.pg_stat_activity.xact_start
LIMIT %(param_1)s::INTEGER;
-- param_1 = 1
