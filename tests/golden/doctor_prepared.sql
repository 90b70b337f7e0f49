SELECT pg_catalog.pg_prepared_xacts.gid, pg_catalog.pg_prepared_xacts.owner, CAST(EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_prepared_xacts.prepared) AS FLOAT) AS age, marks.keys
FROM pg_catalog.pg_prepared_xacts
JOIN LATERAL (
  SELECT count(DISTINCT mark.classid) AS keys, coalesce(bool_or(CAST(mark.classid AS BIGINT) = outbox_all_keys()), false) AS all_keys
  FROM pg_catalog.pg_locks AS mark
  WHERE mark.pid IS NULL
    AND mark.virtualtransaction = (
    SELECT own.virtualtransaction
    FROM pg_catalog.pg_locks AS own
    WHERE own.pid IS NULL
      AND own.transactionid = pg_catalog.pg_prepared_xacts.transaction
    LIMIT %(param_1)s::INTEGER
  )
    AND mark.locktype = %(locktype_1)s::VARCHAR
    AND mark.objsubid = %(objsubid_1)s::SMALLINT
    AND mark.mode = %(mode_1)s::VARCHAR
    AND (EXISTS (
    SELECT written.mode
    FROM pg_catalog.pg_locks AS written
    WHERE written.pid IS NULL
      AND written.virtualtransaction = (
      SELECT own.virtualtransaction
      FROM pg_catalog.pg_locks AS own
      WHERE own.pid IS NULL
        AND own.transactionid = pg_catalog.pg_prepared_xacts.transaction
      LIMIT %(param_1)s::INTEGER
    )
      AND written.relation = (
      SELECT pg_catalog.pg_class.oid
      FROM pg_catalog.pg_class
      WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
        AND pg_table_is_visible(pg_catalog.pg_class.oid)
    )
      AND written.mode = %(mode_2)s::VARCHAR
  ))
) AS marks ON true
WHERE pg_catalog.pg_prepared_xacts.database = current_database()
  AND pg_catalog.pg_prepared_xacts.prepared < clock_timestamp() - %(long)s * interval '1 second';
-- locktype_1 = 'advisory'
-- mode_1 = 'ShareLock'
-- mode_2 = 'RowExclusiveLock'
-- objsubid_1 = 2
-- param_1 = 1
-- relname_1 = 'outbox_messages'
