-- Prolongs all leases of a process; returns the entries that it still has. token; duration: seconds (0: gives them back).
UPDATE :schema.outbox_acts SET locked_until = clock_timestamp() + :duration::float * interval '1 second'
WHERE lease = :token::uuid RETURNING act AS entry
