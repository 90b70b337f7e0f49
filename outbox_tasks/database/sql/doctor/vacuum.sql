-- How many live and dead rows tables have, by the statistics: name, live, dead, vacuumed (seconds since then); threshold (dead rows
-- at which autovacuum starts, more or less); and disabled (whether autovacuum is off for the table). tables: their names, a text[].
WITH ours AS (
\ir parts/ours.sql
)
SELECT o.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
       date_part('epoch', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) AS vacuumed,
       coalesce(own.threshold::bigint, 5000 + s.n_live_tup / 5) AS threshold, NOT coalesce(own.enabled::boolean, true) AS disabled
FROM ours o JOIN pg_stat_all_tables s ON s.relid = o.oid
CROSS JOIN LATERAL (
  SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold') AS threshold,
         max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled') AS enabled
  FROM pg_options_to_table(o.reloptions)
) AS own
WHERE o.relname = ANY (:tables::text[]) ORDER BY o.relname
