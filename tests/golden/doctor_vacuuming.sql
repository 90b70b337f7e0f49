SELECT pg_catalog.pg_stat_all_tables.n_live_tup AS live, pg_catalog.pg_stat_all_tables.n_dead_tup AS dead, CAST(EXTRACT(epoch FROM clock_timestamp() - greatest(pg_catalog.pg_stat_all_tables.last_vacuum, pg_catalog.pg_stat_all_tables.last_autovacuum)) AS FLOAT) AS vacuumed, pg_catalog.pg_class.reloptions AS options, current_setting(%(current_setting_1)s::VARCHAR) AS autovacuum, current_setting(%(current_setting_2)s::VARCHAR) AS track_counts
FROM pg_catalog.pg_class
JOIN pg_catalog.pg_stat_all_tables ON pg_catalog.pg_stat_all_tables.relid = pg_catalog.pg_class.oid
WHERE pg_catalog.pg_class.oid = (
  SELECT pg_catalog.pg_class.oid
  FROM pg_catalog.pg_class
  WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
    AND pg_table_is_visible(pg_catalog.pg_class.oid)
);
-- current_setting_1 = 'autovacuum'
-- current_setting_2 = 'track_counts'
-- relname_1 = 'outbox_messages'
