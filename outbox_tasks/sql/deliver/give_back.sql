-- Gives leases back whose sends have not begun: their messages are due again, without a note. tokens: of the leases.
UPDATE :schema.outbox_leases l SET locked_until = now(), holder = NULL
WHERE l.token = ANY (:tokens::uuid[]) AND l.begun_at IS NULL
