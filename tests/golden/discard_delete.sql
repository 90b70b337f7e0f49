WITH picked AS MATERIALIZED (
  SELECT outbox_messages.id AS id
  FROM unnest(%(ids)s::UUID[]) AS anon_1(id)
  JOIN outbox_messages ON outbox_messages.id = ANY (ARRAY[anon_1.id])
  WHERE outbox_messages.status = 'dead'
    AND (CAST(%(until)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) IS NULL OR outbox_messages.dead_at <= %(until)s::TIMESTAMP WITH TIME ZONE)
    AND %(param_1)s::VARCHAR = any(%(states)s::TEXT[]) OR concat(outbox_messages.status) = %(param_2)s::VARCHAR
    AND outbox_messages.begun = false
    AND (outbox_messages.lease IS NULL OR outbox_messages.locked_by IS NULL OR outbox_messages.attempts > %(attempts_1)s::INTEGER OR outbox_messages.locked_until <= now())
    AND %(param_3)s::VARCHAR = any(%(states)s::TEXT[])
  FOR UPDATE OF outbox_messages SKIP LOCKED
), gone AS (
  DELETE FROM outbox_messages
  USING picked
  WHERE outbox_messages.id = ANY (ARRAY[picked.id])
  RETURNING CAST(outbox_messages.id AS TEXT) AS id
), audited AS (UPDATE outbox_audit SET count=(outbox_audit.count + (
  SELECT count(*) AS count_1
  FROM gone
)) WHERE outbox_audit.seq = %(entry)s::BIGINT RETURNING outbox_audit.seq)
SELECT gone.id
FROM gone;
-- attempts_1 = 0
-- param_1 = 'dead'
-- param_2 = 'pending'
-- param_3 = 'waiting'
