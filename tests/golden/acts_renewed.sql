UPDATE outbox_acts
SET locked_until=(clock_timestamp() + %(duration)s * interval '1 second')
WHERE outbox_acts.lease = %(token)s::UUID
RETURNING outbox_acts.act AS entry;
