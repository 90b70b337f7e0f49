-- The prepared transactions of this database that are older than `long` seconds: gid, owner, age, and how many keys each has
-- written messages with. No process runs one: its locks have the same virtual transaction as that of its number.
WITH ours AS (
\ir parts/ours.sql
), writers AS (
\ir parts/writers.sql
)
SELECT p.gid, p.owner, date_part('epoch', clock_timestamp() - p.prepared) AS age, coalesce(w.keys, 0) AS keys
FROM pg_prepared_xacts p LEFT JOIN writers w ON w.pid IS NULL AND p.transaction::text = ANY (w.transactions)
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - :long::float * interval '1 second'
