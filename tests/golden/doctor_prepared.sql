SELECT pg_catalog.pg_prepared_xacts.gid, pg_catalog.pg_prepared_xacts.owner, CAST(EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_prepared_xacts.prepared) AS FLOAT) AS age
FROM pg_catalog.pg_prepared_xacts
WHERE pg_catalog.pg_prepared_xacts.database = current_database()
  AND pg_catalog.pg_prepared_xacts.prepared < clock_timestamp() - %(long)s * interval '1 second';
