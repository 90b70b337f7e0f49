-- Marks a message as taken by a consumer. Changes a row if this is the first time.
--
-- consumer; message: its id, as text. Waits for any other transaction that writes, as long as the connection's timeout.
INSERT INTO :schema.outbox_inbox (consumer, message_id) VALUES (:consumer, :message) ON CONFLICT DO NOTHING
