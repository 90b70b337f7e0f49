-- The indexes of tables: name, and whether PostgreSQL can use it (`valid`). tables: their names, a text[].
WITH ours AS (
\ir parts/ours.sql
)
SELECT i.relname AS name, x.indisvalid AND x.indisready AS valid
FROM ours o JOIN pg_index x ON x.indrelid = o.oid JOIN pg_class i ON i.oid = x.indexrelid
WHERE o.relname = ANY (:tables::text[])
