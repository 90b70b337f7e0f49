WITH gone AS (
  DELETE FROM outbox_acts
  WHERE outbox_acts.act = %(entry)s::BIGINT
    AND outbox_acts.lease = %(token)s::UUID
  RETURNING outbox_acts.act
)
UPDATE outbox_audit
SET facts=((outbox_audit.facts || %(found)s::JSONB) || jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, round(CAST(greatest(least(date_part('epoch', clock_timestamp()) - date_part('epoch', outbox_audit.at), 1e10), -1e10) AS NUMERIC), %(round_1)s::INTEGER))),
  closed_at=clock_timestamp()
FROM gone
WHERE outbox_audit.seq = gone.act
RETURNING outbox_audit.seq AS entry;
-- jsonb_build_object_1 = 'seconds'
-- round_1 = 1
