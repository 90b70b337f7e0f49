-- The messages that consumers have taken.
CREATE TABLE IF NOT EXISTS :schema.outbox_inbox (
  consumer text NOT NULL,
  message_id text NOT NULL,
  received_at text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS :schema.outbox_inbox_received_at ON outbox_inbox (received_at)
