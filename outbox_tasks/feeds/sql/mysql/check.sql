-- What this server and the table are.
SELECT version(), @@read_only, (
  SELECT engine FROM information_schema.tables
  WHERE table_schema = coalesce(:schema_, database()) AND table_name = 'outbox_feed'
)
