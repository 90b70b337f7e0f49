SELECT needed.relation, needed.privilege
FROM json_to_recordset(CAST(%(needed)s::VARCHAR AS JSON)) AS needed(relation TEXT, privilege TEXT)
JOIN pg_catalog.pg_class ON pg_catalog.pg_class.relname = needed.relation
WHERE pg_table_is_visible(pg_catalog.pg_class.oid)
  AND NOT CASE
    WHEN (split_part(needed.privilege, ' (', 2) = '') THEN has_table_privilege(pg_catalog.pg_class.oid, split_part(needed.privilege, ' (', 1))
    ELSE NOT (EXISTS (
  SELECT *
  FROM pg_catalog.pg_attribute
  WHERE pg_catalog.pg_attribute.attrelid = pg_catalog.pg_class.oid
    AND pg_catalog.pg_attribute.attname = any(string_to_array(rtrim(split_part(needed.privilege, ' (', 2), ')'), ', '))
    AND NOT has_column_privilege(pg_catalog.pg_class.oid, pg_catalog.pg_attribute.attnum, split_part(needed.privilege, ' (', 1))
)) END;
