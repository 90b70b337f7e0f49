-- Writes messages, in the transaction of the application. Those that are due later wait; those with a key are ordered.
--
-- row: JSON rows. A payload is `text`, or `data` in base64. A message is due at `deliver_at`, or after `delay` seconds.
-- It is one text, because applications use various drivers, and all of them can pass a text.
SELECT :schema.outbox_write(:row::json)
