WITH picked AS MATERIALIZED (
  SELECT outbox_messages.id AS id
  FROM unnest(%(ids)s::UUID[]) AS anon_1(id)
  JOIN outbox_messages ON outbox_messages.id = ANY (ARRAY[anon_1.id])
  WHERE concat(outbox_messages.status) = %(param_4)s::VARCHAR
    AND (CAST(%(until)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) IS NULL OR outbox_messages.dead_at <= %(until)s::TIMESTAMP WITH TIME ZONE)
  FOR UPDATE OF outbox_messages SKIP LOCKED
), changed AS (UPDATE outbox_messages SET attempts=%(param_1)s::INTEGER, history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, %(person)s::VARCHAR, %(jsonb_build_object_5)s::VARCHAR, %(reason)s::VARCHAR, %(jsonb_build_object_6)s::VARCHAR, %(entry)s::BIGINT, %(jsonb_build_object_7)s::VARCHAR, outbox_messages.attempts, %(jsonb_build_object_8)s::VARCHAR, outbox_messages.deliver_at))) AS JSONB), status=%(param_2)s::VARCHAR, locked_until=clock_timestamp(), lease=NULL, begun=false, dead_at=NULL, outages=%(param_3)s::INTEGER, deliver_at=clock_timestamp() FROM picked WHERE outbox_messages.id = ANY (ARRAY[picked.id]) RETURNING CAST(outbox_messages.id AS TEXT) AS id), audited AS (UPDATE outbox_audit SET count=(outbox_audit.count + (
  SELECT count(*) AS count_1
  FROM changed
)), facts=(outbox_audit.facts || jsonb_build_object('changed', CASE WHEN (jsonb_typeof(outbox_audit.facts -> 'changed') = 'array') THEN outbox_audit.facts -> 'changed' ELSE '[]'::jsonb END || (
  SELECT coalesce(jsonb_agg("some".id), '[]'::jsonb) AS coalesce_1
  FROM (
    SELECT changed.id AS id
    FROM changed
    LIMIT greatest(0, 1000 - jsonb_array_length(CASE WHEN (jsonb_typeof(outbox_audit.facts -> 'changed') = 'array') THEN outbox_audit.facts -> 'changed' ELSE '[]'::jsonb END))
  ) AS "some"
))) WHERE outbox_audit.seq = %(entry)s::BIGINT RETURNING outbox_audit.seq)
SELECT changed.id
FROM changed;
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'redriven'
-- jsonb_build_object_4 = 'by'
-- jsonb_build_object_5 = 'why'
-- jsonb_build_object_6 = 'entry'
-- jsonb_build_object_7 = 'attempts'
-- jsonb_build_object_8 = 'deliver_at'
-- param_1 = 0
-- param_2 = 'pending'
-- param_3 = 0
-- param_4 = 'dead'
