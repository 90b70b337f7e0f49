SELECT pg_catalog.pg_class.relname AS "table", named.relname AS name, pg_catalog.pg_index.indisvalid
  AND pg_catalog.pg_index.indisready AS valid, array((
  SELECT pg_get_indexdef(pg_catalog.pg_index.indexrelid, place.n, %(pg_get_indexdef_2)s) AS pg_get_indexdef_1
  FROM generate_series(1, CAST(pg_catalog.pg_index.indnkeyatts AS INTEGER)) AS place(n)
)) AS columns
FROM pg_catalog.pg_class
JOIN pg_catalog.pg_index ON pg_catalog.pg_index.indrelid = pg_catalog.pg_class.oid
JOIN pg_catalog.pg_class AS named ON named.oid = pg_catalog.pg_index.indexrelid
WHERE pg_catalog.pg_class.relname = any(%(tables)s::TEXT[])
  AND pg_table_is_visible(pg_catalog.pg_class.oid);
-- pg_get_indexdef_2 = True
