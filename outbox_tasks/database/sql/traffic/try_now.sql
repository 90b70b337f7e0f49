-- Ends the pause of an open circuit, so that the next claim lets one message try the destination. A pause by a person stays, and so
-- does a try that is under way. destination. Returns a row if a pause was ended.
UPDATE :schema.outbox_destinations SET pause_until = clock_timestamp()
WHERE name = :destination::text AND opened_at IS NOT NULL AND paused_at IS NULL AND probe IS NULL AND pause_until > clock_timestamp()
RETURNING name
