-- Live and dead rows of tables, by the statistics; vacuumed: seconds since then; options of the table; and whether the server
-- runs autovacuum at all. tables: their names, a text[].
WITH ours AS (
\ir parts/ours.sql
)
SELECT o.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead, o.reloptions AS options,
       date_part('epoch', clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) AS vacuumed,
       current_setting('autovacuum') AS autovacuum, current_setting('track_counts') AS track_counts
FROM ours o JOIN pg_stat_all_tables s ON s.relid = o.oid
WHERE o.relname = ANY (:tables::text[]) ORDER BY o.relname
