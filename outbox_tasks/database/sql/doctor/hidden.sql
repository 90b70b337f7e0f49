-- The tables of which row-level security may hide rows from our role: name, and whether we own it (`own`). names: a text[].
WITH ours AS (
\ir parts/ours.sql
)
SELECT c.relname AS name, pg_has_role(c.relowner, 'USAGE') AS own
FROM ours JOIN pg_class c USING (oid)
WHERE c.relname = ANY (:names::text[]) AND c.relkind IN ('r', 'p') AND row_security_active(c.oid)
ORDER BY c.relname
