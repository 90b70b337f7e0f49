SELECT count(*) AS sessions
FROM pg_catalog.pg_stat_activity
WHERE pg_catalog.pg_stat_activity.datname = current_database()
  AND pg_catalog.pg_stat_activity.query = '<insufficient privilege>';
