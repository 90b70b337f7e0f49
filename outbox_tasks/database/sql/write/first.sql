-- Marks a message as taken by a consumer. Returns a row if this is the first time.
--
-- consumer; message: its id, as text. Waits for a transaction that is marking the same message.
INSERT INTO :schema.outbox_inbox (consumer, message_id) VALUES (:consumer::text, :message::text)
ON CONFLICT DO NOTHING
RETURNING message_id
