-- Gives the right to try a destination back, because no message was due. destination; token.
UPDATE :schema.outbox_destinations SET probe = NULL, pause_until = clock_timestamp()
WHERE name = :destination::text AND probe = :token::uuid
