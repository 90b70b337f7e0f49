-- The limits that people have set and that count now: of each destination and setting the value (infinity: all), who set it, why,
-- since when, and until when (null: until somebody clears it).
SELECT l.destination, l.setting, l.value, l.who, l.why, l.since, l.until
FROM :schema.outbox_limits l WHERE l.until IS NULL OR l.until > now() ORDER BY l.destination, l.setting
