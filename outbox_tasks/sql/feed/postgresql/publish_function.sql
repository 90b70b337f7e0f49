-- What other languages call, in their own transaction: writes a message into the feed, and returns its id. The caller
-- needs INSERT on it, and SELECT on its column id.
--
-- key: what orders it, or null. options: other fields of the message.
CREATE OR REPLACE FUNCTION :schema.outbox_feed_publish(
  event_type text, payload json, key text DEFAULT NULL, options jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE sql
BEGIN ATOMIC
  INSERT INTO :schema.outbox_feed (ordering_key, message) VALUES (key, (jsonb_build_object(
    'event_type', event_type, 'content_type', 'application/json', 'text', payload::text
  ) || coalesce(options, '{}'))::text)
  RETURNING id;
END
