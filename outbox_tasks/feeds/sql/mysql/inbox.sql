-- The messages that consumers have taken. Texts are compared byte by byte: no collation makes two ids one.
CREATE TABLE IF NOT EXISTS :schema.outbox_inbox (
  consumer varbinary(1020) NOT NULL,
  message_id varbinary(1020) NOT NULL,
  received_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
  PRIMARY KEY (consumer, message_id),
  KEY outbox_inbox_received_at (received_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
