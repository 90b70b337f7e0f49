-- The rights that roles other than the owner have on our tables, views and sequence, on partitions, and on functions that run
-- with the rights of their owner: role, name, privilege, column_ (null: the right is not on a column). names: of the tables,
-- views and sequence, a text[]. functions: a text[].
WITH ours AS (
\ir parts/ours.sql
), relation AS (
  SELECT c.oid, c.relname AS name, c.relowner AS owner, c.relacl AS rights, c.relispartition OR c.relkind = 'S' AS whole
  FROM ours JOIN pg_class c USING (oid)
  WHERE c.relname = ANY (:names::text[]) OR c.relispartition AND c.relkind = 'r'
), given AS (
  SELECT a.grantee, r.name, a.privilege_type AS privilege, c.attname AS column_
  FROM relation r CROSS JOIN LATERAL aclexplode(r.rights) AS a
  LEFT JOIN pg_attribute c ON c.attrelid = r.oid AND c.attnum > 0 AND NOT c.attisdropped AND NOT r.whole
                          AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
  WHERE a.grantee <> r.owner
  UNION
  SELECT a.grantee, r.name, a.privilege_type, c.attname
  FROM relation r JOIN pg_attribute c ON c.attrelid = r.oid CROSS JOIN LATERAL aclexplode(c.attacl) AS a
  WHERE a.grantee <> r.owner
  UNION
  SELECT a.grantee, f.oid::regprocedure::text, 'EXECUTE', NULL
  FROM pg_proc f CROSS JOIN LATERAL aclexplode(f.proacl) AS a
  WHERE a.grantee <> f.proowner AND f.prosecdef AND f.proname = ANY (:functions::text[])
    AND f.pronamespace = (SELECT relnamespace FROM ours WHERE relname = 'outbox_at_work')
)
SELECT coalesce(r.rolname, 'PUBLIC') AS role, g.name, g.privilege, g.column_
FROM given g LEFT JOIN pg_roles r ON r.oid = g.grantee WHERE r.rolsuper IS NOT TRUE ORDER BY 1, 2, 3
