-- Gives the right to probe back: no message was due. destination; token.
UPDATE :schema.outbox_destinations SET probe = NULL, pause_until = clock_timestamp()
WHERE name = :destination::text AND probe = :token::uuid
