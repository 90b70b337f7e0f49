-- Reserves slots for drains, which keep them for `hold` seconds. Slots whose time is over are free.
--
-- share: JSON rows of destination, slots (how many there are), and wanted (how many more are to be reserved); holder: the process of a
-- drain that begins now; null: the tasks of the drains are still to be sent. Returns the destination, token and number of each slot.
WITH share AS (
  SELECT * FROM json_to_recordset(:share::json) AS s(destination text, slots integer, wanted integer)
), free AS (
  SELECT share.destination, n.slot FROM share CROSS JOIN LATERAL (
    SELECT n::smallint AS slot FROM generate_series(1, share.slots) AS n
    WHERE NOT EXISTS (SELECT FROM :schema.outbox_drains d WHERE d.destination = share.destination AND d.slot = n AND d.until > now())
    ORDER BY n LIMIT share.wanted) AS n
)
INSERT INTO :schema.outbox_drains AS d (destination, slot, token, holder, until)
SELECT destination, slot, gen_random_uuid(), :holder::text, now() + :hold::float * interval '1 second'
FROM free WHERE set_config('synchronous_commit', 'off', true) = 'off' ORDER BY destination, slot
ON CONFLICT (destination, slot) DO UPDATE SET token = excluded.token, holder = excluded.holder, until = excluded.until WHERE d.until <= now()
RETURNING destination, token::text, slot
