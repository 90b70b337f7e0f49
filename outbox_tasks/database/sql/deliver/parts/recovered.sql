-- Closes the circuit of a destination, because it has answered. A further condition may follow.
UPDATE :schema.outbox_destinations
SET failures = 0, different = 0, opened_at = NULL, pause_until = NULL, probe = NULL, recovered_at = clock_timestamp()
WHERE name = :destination::text AND (failures > 0 OR opened_at IS NOT NULL)
