-- Writes one message into the feed, in the transaction of the application.
--
-- id; key: what orders it, or null; message: JSON. The table makes the number and the time.
INSERT INTO :schema.outbox_feed (id, ordering_key, message) VALUES (:id, :key, :message)
