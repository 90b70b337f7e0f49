-- In SQL_ASCII a text can be any bytes. Nobody could read a row whose bytes are not UTF8.
DO $do$
BEGIN
  IF current_setting('server_encoding') = 'SQL_ASCII' THEN
    RAISE EXCEPTION 'a feed needs a database that knows its encoding, such as UTF8, and this one is in SQL_ASCII'
      USING ERRCODE = '42000';
  END IF;
END
$do$;

-- The messages that consumers have taken. The same as in people.sql.
CREATE TABLE IF NOT EXISTS :schema.outbox_inbox (
  consumer text NOT NULL,
  message_id text NOT NULL,
  received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, message_id)
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000
);

CREATE INDEX IF NOT EXISTS outbox_inbox_received_at ON :schema.outbox_inbox (received_at)
