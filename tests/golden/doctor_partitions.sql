SELECT pg_catalog.pg_class.relname AS name, to_char(timezone(%(timezone_1)s::VARCHAR, now()) + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER), %(to_char_1)s::VARCHAR) AS today, to_char(timezone(%(timezone_1)s::VARCHAR, now()) + make_interval(%(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, %(make_interval_7)s::INTEGER, %(make_interval_8)s::INTEGER), %(to_char_2)s::VARCHAR) AS tomorrow
FROM pg_catalog.pg_inherits
JOIN pg_catalog.pg_class ON pg_catalog.pg_class.oid = pg_catalog.pg_inherits.inhrelid
WHERE pg_catalog.pg_inherits.inhparent = (
  SELECT pg_catalog.pg_class.oid
  FROM pg_catalog.pg_class
  WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
    AND pg_table_is_visible(pg_catalog.pg_class.oid)
);
-- make_interval_1 = 0
-- make_interval_2 = 0
-- make_interval_3 = 0
-- make_interval_4 = 0
-- make_interval_5 = 0
-- make_interval_6 = 0
-- make_interval_7 = 0
-- make_interval_8 = 1
-- relname_1 = 'outbox_archive'
-- timezone_1 = 'UTC'
-- to_char_1 = '"outbox_archive_"YYYYMMDD'
-- to_char_2 = '"outbox_archive_"YYYYMMDD'
