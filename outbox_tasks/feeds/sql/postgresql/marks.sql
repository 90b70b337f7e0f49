-- Which rows with keys may be copied: those numbered up to `high`; of a class of keys that has marks, only those up to the
-- lowest `floor` of these. A row for each mark, or one without. The number is read before the marks: who leaves a mark
-- later gets higher numbers. Run it before look.sql: what is visible there had left its mark, or was committed. Class 0 is
-- that of all keys. `feed`: the bits of this feed in its marks. See feed.sql.
-- A restore or a setval may have left the sequence behind the rows, so the highest number of a row counts too.
WITH last AS MATERIALIZED (
  SELECT greatest(last_value - 1 + is_called::integer, (SELECT max(number) FROM :schema.outbox_feed)) AS high,
         tableoid::bigint & 127 AS feed
  FROM :schema.outbox_feed_number
)
SELECT last.high, mark.class AS class_, last.high - ((last.high - mark.low) & 1099511627775) AS floor
FROM last LEFT JOIN LATERAL (
  SELECT (classid::bigint >> 8) & 65535 AS class, ((classid::bigint & 255) << 32) | objid::bigint AS low
  FROM pg_locks
  WHERE last.high IS NOT NULL AND locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint >> 24 = last.feed
) AS mark ON (last.high - mark.low) & 1099511627775 < 549755813888
