SELECT CAST(regprocedure(pg_catalog.pg_proc.oid) AS TEXT) AS function
FROM pg_catalog.pg_proc
JOIN pg_catalog.pg_class ON pg_catalog.pg_class.relnamespace = pg_catalog.pg_proc.pronamespace
WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
  AND pg_table_is_visible(pg_catalog.pg_class.oid)
  AND pg_catalog.pg_proc.proname = any(%(names)s::TEXT[])
  AND NOT has_function_privilege(pg_catalog.pg_proc.oid, %(has_function_privilege_1)s::VARCHAR)
ORDER BY pg_catalog.pg_proc.proname;
-- has_function_privilege_1 = 'EXECUTE'
-- relname_1 = 'outbox_messages'
