-- The rights that our role lacks: name (of a relation, or of a function with its parameters) and privilege.
-- needed: JSON rows of relation and privilege, which may name columns: UPDATE (count, facts); functions: that it calls, a text[].
WITH ours AS (
\ir parts/ours.sql
), needed AS (
  SELECT o.oid, n.*, split_part(n.privilege, ' (', 1) AS kind,
         string_to_array(rtrim(split_part(n.privilege, ' (', 2), ')'), ', ') AS columns
  FROM json_to_recordset(:needed::json) AS n(relation text, privilege text) JOIN ours o ON o.relname = n.relation
)
SELECT n.relation AS name, n.privilege FROM needed n
WHERE CASE WHEN n.columns = '{}' THEN NOT has_table_privilege(n.oid, n.kind)
  ELSE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = n.oid AND a.attname = ANY (n.columns)
               AND NOT has_column_privilege(n.oid, a.attnum, n.kind)) END
UNION ALL
SELECT f.oid::regprocedure::text, 'EXECUTE' FROM pg_proc f
WHERE f.proname = ANY (:functions::text[]) AND NOT has_function_privilege(f.oid, 'EXECUTE')
  AND f.pronamespace = (SELECT relnamespace FROM ours WHERE relname = 'outbox_at_work')
