SELECT needed.relation, needed.privilege, pg_get_userbyid(pg_catalog.pg_class.relowner) AS owner
FROM json_to_recordset(CAST(%(needed)s::VARCHAR AS JSON)) AS needed(relation TEXT, privilege TEXT)
JOIN pg_catalog.pg_class ON pg_catalog.pg_class.relname = needed.relation
WHERE pg_table_is_visible(pg_catalog.pg_class.oid)
  AND NOT CASE
    WHEN (needed.privilege = %(privilege_1)s::VARCHAR) THEN pg_has_role(pg_catalog.pg_class.relowner, %(pg_has_role_1)s::VARCHAR)
    WHEN (needed.privilege = %(privilege_2)s::VARCHAR) THEN has_schema_privilege(pg_catalog.pg_class.relnamespace, %(has_schema_privilege_1)s::VARCHAR)
    ELSE has_table_privilege(pg_catalog.pg_class.oid, needed.privilege) END;
-- has_schema_privilege_1 = 'CREATE'
-- pg_has_role_1 = 'USAGE'
-- privilege_1 = 'owner'
-- privilege_2 = 'create'
