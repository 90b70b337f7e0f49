-- Puts tokens back that were taken and not needed. destination; count.
UPDATE :schema.outbox_destinations SET allowance = allowance + :count::integer WHERE name = :destination::text
