WITH free AS (
  SELECT outbox_acts.act AS act
  FROM outbox_acts
  WHERE (outbox_acts.locked_until <= clock_timestamp() OR outbox_acts.lease = %(token)s::UUID)
    AND outbox_acts.act != ALL (%(running)s::BIGINT[])
  ORDER BY outbox_acts.act
  LIMIT %(size)s::INTEGER
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_acts
SET lease=%(token)s::UUID,
  locked_by=%(holder)s::VARCHAR,
  locked_until=(clock_timestamp() + %(duration)s * interval '1 second')
FROM free
WHERE outbox_acts.act = free.act
RETURNING outbox_acts.act AS entry;
