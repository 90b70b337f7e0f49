-- Our tables, views and indexes, found without a right on their schema. place: its name; null: what the connection finds.
SELECT c.oid, c.relname, c.relnamespace, c.reloptions FROM pg_class c
WHERE c.relname LIKE 'outbox\_%' AND CASE WHEN :place::text IS NULL THEN pg_table_is_visible(c.oid)
  ELSE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = :place) END
