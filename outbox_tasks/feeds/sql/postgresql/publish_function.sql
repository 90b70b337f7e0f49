-- What other languages call, in their own transaction: writes a message into the feed, and returns its id. The caller
-- needs INSERT on it, and SELECT on its column id.
--
-- payload: json, jsonb, or text that is JSON. key: what orders it, or null. options: other fields of the message.
CREATE OR REPLACE FUNCTION :schema.outbox_feed_publish(
  event_type text, payload anycompatible, key text DEFAULT NULL, options jsonb DEFAULT '{}'
) RETURNS uuid LANGUAGE plpgsql AS $body$
DECLARE
  made uuid;
BEGIN
  INSERT INTO :schema.outbox_feed AS f (ordering_key, message) VALUES (key, (jsonb_build_object(
    'event_type', event_type, 'content_type', 'application/json', 'text', payload::text::json::text
  ) || coalesce(options, '{}'))::text)
  RETURNING f.id INTO made;
  RETURN made;
END
$body$
