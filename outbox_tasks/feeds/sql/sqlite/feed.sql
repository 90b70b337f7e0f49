-- The feed: what is to be copied to the relay. AUTOINCREMENT never gives a number again, as SQLite otherwise does.
CREATE TABLE IF NOT EXISTS :schema.outbox_feed (
  number integer PRIMARY KEY AUTOINCREMENT,
  id text NOT NULL CHECK (typeof(id) = 'text' AND length(CAST(id AS BLOB)) = 36),
  created_at text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  ordering_key text CHECK (typeof(ordering_key) IN ('text', 'null') AND length(CAST(ordering_key AS BLOB)) <= 1020),
  message text NOT NULL CHECK (typeof(message) = 'text')
)
