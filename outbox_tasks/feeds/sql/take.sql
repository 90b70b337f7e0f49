-- Takes the lease of a feed, unless another bridge has it, or its source failed just now. Returns a row if it did.
--
-- hold: seconds. What the former holder copied is read by `feeds/left.sql`, in a later snapshot: this one may have waited.
INSERT INTO :schema.outbox_feeds AS f (name, token, holder, locked_until)
VALUES (:feed, :token::uuid, :holder, clock_timestamp() + :hold::float * interval '1 second')
ON CONFLICT (name) DO UPDATE SET token = excluded.token, holder = excluded.holder, locked_until = excluded.locked_until
WHERE f.locked_until <= clock_timestamp() AND (f.not_before IS NULL OR f.not_before <= clock_timestamp())
RETURNING f.name
