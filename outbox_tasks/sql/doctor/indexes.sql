-- The indexes of tables: name, columns, and whether PostgreSQL can use it (`valid`). tables: their names, a text[].
WITH ours AS (
\ir parts/ours.sql
)
SELECT i.relname AS name, x.indisvalid AND x.indisready AS valid,
       ARRAY(SELECT pg_get_indexdef(x.indexrelid, n, true) FROM generate_series(1, x.indnkeyatts::integer) AS n) AS columns
FROM ours o JOIN pg_index x ON x.indrelid = o.oid JOIN pg_class i ON i.oid = x.indexrelid
WHERE o.relname = ANY (:tables::text[])
