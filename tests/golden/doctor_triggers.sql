SELECT pg_catalog.pg_trigger.tgname AS name
FROM pg_catalog.pg_trigger
WHERE pg_catalog.pg_trigger.tgrelid = (
  SELECT pg_catalog.pg_class.oid
  FROM pg_catalog.pg_class
  WHERE pg_catalog.pg_class.relname = %(relname_1)s::VARCHAR
    AND pg_table_is_visible(pg_catalog.pg_class.oid)
)
  AND pg_catalog.pg_trigger.tgenabled != 'D';
-- relname_1 = 'outbox_messages'
