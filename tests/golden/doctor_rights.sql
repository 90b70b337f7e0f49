SELECT needed.relation, needed.privilege
FROM json_to_recordset(CAST(%(needed)s::VARCHAR AS JSON)) AS needed(relation TEXT, privilege TEXT)
JOIN pg_catalog.pg_class ON pg_catalog.pg_class.relname = needed.relation
WHERE pg_table_is_visible(pg_catalog.pg_class.oid)
  AND NOT has_table_privilege(pg_catalog.pg_class.oid, needed.privilege);
