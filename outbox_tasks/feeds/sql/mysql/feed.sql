-- The feed: what is to be copied to the relay.
CREATE TABLE IF NOT EXISTS :schema.outbox_feed (
  number bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  id char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT (uuid()),
  created_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
  ordering_key varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  message longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
