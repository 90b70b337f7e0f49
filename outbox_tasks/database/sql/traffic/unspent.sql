-- Puts tokens back that were taken and not needed. spare: JSON rows of destination and size.
UPDATE :schema.outbox_destinations d SET allowance = d.allowance + s.size
FROM json_to_recordset(:spare::json) AS s(destination text, size integer) WHERE d.name = s.destination
