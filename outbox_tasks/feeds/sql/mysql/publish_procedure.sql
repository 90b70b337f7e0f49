-- What other languages call, in their own transaction: writes a message into the feed. The caller needs INSERT on it.
--
-- payload: JSON. message_key: what orders it, or null. options: a JSON object with other fields of the message, or null.
CREATE PROCEDURE IF NOT EXISTS :schema.outbox_publish(
  event_type varchar(255) CHARACTER SET utf8mb4, payload longtext CHARACTER SET utf8mb4,
  message_key varchar(255) CHARACTER SET utf8mb4, options longtext CHARACTER SET utf8mb4
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  IF coalesce(event_type, '') = '' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outbox_publish: event_type is missing';
  ELSEIF NOT coalesce(json_valid(payload), false) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outbox_publish: payload must be JSON';
  ELSEIF message_key = '' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outbox_publish: message_key must be null or have 1 to 255 characters';
  ELSEIF NOT coalesce(json_type(options), 'OBJECT') = 'OBJECT' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outbox_publish: options must be null or a JSON object';
  END IF;
  INSERT INTO :schema.outbox_feed (ordering_key, message) VALUES (message_key, json_merge_patch(
    json_object('event_type', event_type, 'content_type', 'application/json', 'text', payload), coalesce(options, '{}')
  ));
END
