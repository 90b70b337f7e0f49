-- Gives leases back whose sends have not begun: after `wait` seconds their messages are due again, without a note. tokens.
UPDATE :schema.outbox_leases l SET locked_until = now() + :wait::float * interval '1 second', holder = NULL
WHERE l.token = ANY (:tokens::uuid[]) AND l.begun_at IS NULL
