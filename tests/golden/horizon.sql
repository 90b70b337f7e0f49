WITH last AS MATERIALIZED (
  SELECT (outbox_messages_seq_seq.last_value - %(last_value_1)s::BIGINT) + CAST(outbox_messages_seq_seq.is_called AS INTEGER) AS high
  FROM outbox_messages_seq_seq
  WHERE EXISTS (
    SELECT asked.destination
    FROM json_to_recordset(CAST(%(asked)s::VARCHAR AS JSON)) AS asked(destination TEXT)
    JOIN LATERAL (
      SELECT outbox_messages.id AS id
      FROM outbox_messages
      WHERE outbox_messages.destination = asked.destination
        AND outbox_messages.key IS NOT NULL
      LIMIT %(param_1)s::INTEGER
    ) AS keyed ON true
  )
)
SELECT last.high, mark.class, mark.floor
FROM last LEFT OUTER
JOIN LATERAL (
  SELECT CAST(pg_locks.classid AS BIGINT) AS class, last.high - (last.high - CAST(pg_locks.objid AS BIGINT) & %(param_2)s::INTEGER) AS floor
  FROM pg_locks
  WHERE last.high IS NOT NULL
    AND pg_locks.locktype = %(locktype_1)s::VARCHAR
    AND pg_locks.objsubid = 2
    AND pg_locks.mode = %(mode_1)s::VARCHAR
    AND pg_locks.database = (
    SELECT oid
    FROM pg_database
    WHERE datname = current_database()
  )
    AND (CAST(pg_locks.classid AS BIGINT) > %(param_3)s::BIGINT OR CAST(pg_locks.classid AS BIGINT) = outbox_all_keys())
) AS mark ON true;
-- last_value_1 = 1
-- locktype_1 = 'advisory'
-- mode_1 = 'ShareLock'
-- param_1 = 1
-- param_2 = 2147483647
-- param_3 = 2147483647
