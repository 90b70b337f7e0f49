-- Lets one message of each of these destinations try whether it answers: its circuit is open, and its pause is over. Of several claims
-- one gets the right to try; after `hold` seconds without an outcome another claim may get it.
-- probe: JSON rows of destination and token (of the message's lease). Returns the destinations that this claim may try.
UPDATE :schema.outbox_destinations d SET probe = p.token, pause_until = clock_timestamp() + :hold::float * interval '1 second'
FROM json_to_recordset(:probe::json) AS p(destination text, token uuid)
WHERE d.name = p.destination AND d.opened_at IS NOT NULL AND d.paused_at IS NULL AND d.pause_until <= now()
RETURNING d.name
