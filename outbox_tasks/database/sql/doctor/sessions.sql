-- The other sessions of this database, the longest transaction first: pid, role, application, age (of the transaction: seconds;
-- null: it has none, or our role may not see it), snapshot (for how many transactions it has one), holds (whether it keeps dead
-- rows); keys and all_keys: see parts/writers.sql.
WITH ours AS (
\ir parts/ours.sql
), writers AS (
\ir parts/writers.sql
)
SELECT a.pid, a.usename AS role, a.application_name AS application,
       date_part('epoch', clock_timestamp() - a.xact_start) AS age, age(a.backend_xmin) AS snapshot,
       a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL AS holds,
       coalesce(w.keys, 0) AS keys, coalesce(w.all_keys, false) AS all_keys
FROM pg_stat_activity a LEFT JOIN writers w ON w.pid = a.pid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 10000
