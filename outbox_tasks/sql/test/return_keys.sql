-- Gives keys back that a test has used. row: JSON rows of what own_keys.sql returned.
INSERT INTO :schema.outbox_keys AS k (destination, key, token, due, more, first)
SELECT destination, key, token, due, true, first
FROM json_to_recordset(:row::json) AS r(destination text, key text, token uuid, due timestamptz, first bigint)
ON CONFLICT (destination, key) DO UPDATE SET token = coalesce(k.token, excluded.token), more = true, first = excluded.first
