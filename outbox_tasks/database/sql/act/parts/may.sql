-- Whether the act may go on: it is nobody's in the background (token is null), or we have its lease, which is prolonged.
-- Its row stays locked until the batch has ended.
held AS (
  UPDATE :schema.outbox_acts a SET locked_until = clock_timestamp() + :duration::float * interval '1 second'
  WHERE a.act = :entry::bigint AND a.lease = :token::uuid
  RETURNING a.act
), may AS MATERIALIZED (
  SELECT act FROM held UNION ALL SELECT :entry::bigint WHERE :token::uuid IS NULL
)
