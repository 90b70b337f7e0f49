-- Whether a transaction is open that wrote in a day. day: its number.
SELECT EXISTS (
  SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
  WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.mode = 'RowExclusiveLock'
    AND c.relname = 'outbox_messages_' || :day::integer
    AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = (SELECT tableoid FROM :schema.outbox_days LIMIT 1))
) AS open
