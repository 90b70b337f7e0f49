INSERT INTO outbox_slots (destination, slot)
SELECT wanted.destination, anon_1.slot
FROM json_to_recordset(CAST(%(wanted)s::VARCHAR AS JSON)) AS wanted(destination TEXT, room INTEGER)
JOIN generate_series(%(generate_series_1)s::INTEGER, wanted.room - %(room_1)s::INTEGER) AS anon_1(slot) ON true ON CONFLICT DO NOTHING;
-- generate_series_1 = 0
-- room_1 = 1
