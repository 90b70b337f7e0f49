WITH held AS (UPDATE outbox_acts SET locked_until=(clock_timestamp() + %(duration)s * interval '1 second') WHERE outbox_acts.act = %(entry)s::BIGINT AND outbox_acts.lease = %(token)s::UUID RETURNING outbox_acts.act), picked AS MATERIALIZED (
  SELECT outbox_messages.id AS id
  FROM unnest(%(ids)s::UUID[]) AS anon_1(id)
  JOIN outbox_messages ON outbox_messages.id = ANY (ARRAY[anon_1.id])
  WHERE (outbox_messages.status = 'dead' AND (CAST(%(until)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) IS NULL OR outbox_messages.dead_at <= %(until)s::TIMESTAMP WITH TIME ZONE) AND %(param_1)s::VARCHAR = any(%(states)s::TEXT[]) OR concat(outbox_messages.status) = %(param_2)s::VARCHAR AND outbox_messages.begun = false AND (outbox_messages.lease IS NULL OR outbox_messages.locked_by IS NULL OR outbox_messages.attempts > %(attempts_1)s::INTEGER OR outbox_messages.locked_until <= now()) AND %(param_3)s::VARCHAR = any(%(states)s::TEXT[]))
    AND (EXISTS (
    SELECT held.act
    FROM held
  ))
  FOR UPDATE OF outbox_messages SKIP LOCKED
), gone AS (
  DELETE FROM outbox_messages
  USING picked
  WHERE outbox_messages.id = ANY (ARRAY[picked.id])
  RETURNING outbox_messages.seq, outbox_messages.id, outbox_messages.event_type, outbox_messages.aggregate_type, outbox_messages.aggregate_id, outbox_messages.destination, outbox_messages.key, outbox_messages.payload, outbox_messages.content_type, outbox_messages.headers, outbox_messages.attempts, coalesce(outbox_messages.last_error_code, %(coalesce_1)s::VARCHAR) AS last_error_code, coalesce(outbox_messages.last_error, concat_ws(%(concat_ws_1)s::VARCHAR, concat(%(concat_1)s::VARCHAR, %(person)s::VARCHAR), %(reason)s::VARCHAR)) AS last_error, outbox_messages.created_at, outbox_messages.locked_by, CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, %(person)s::VARCHAR, %(jsonb_build_object_5)s::VARCHAR, %(reason)s::VARCHAR, %(jsonb_build_object_6)s::VARCHAR, %(entry)s::BIGINT))) AS JSONB) AS history
), moved AS (INSERT INTO outbox_archive (seq, id, event_type, aggregate_type, aggregate_id, destination, key, payload, content_type, headers, attempts, last_error_code, last_error, created_at, locked_by, history, state, finished_at) SELECT gone.seq AS seq, gone.id AS id, gone.event_type AS event_type, gone.aggregate_type AS aggregate_type, gone.aggregate_id AS aggregate_id, gone.destination AS destination, gone.key AS key, gone.payload AS payload, gone.content_type AS content_type, gone.headers AS headers, gone.attempts AS attempts, gone.last_error_code AS last_error_code, gone.last_error AS last_error, gone.created_at AS created_at, gone.locked_by AS locked_by, gone.history AS history, 'discarded', clock_timestamp() AS clock_timestamp_1 FROM gone RETURNING CAST(outbox_archive.id AS TEXT) AS id), audited AS (UPDATE outbox_audit SET count=(outbox_audit.count + (
  SELECT count(*) AS count_1
  FROM moved
)) WHERE outbox_audit.seq = %(entry)s::BIGINT RETURNING outbox_audit.seq)
SELECT moved.id
FROM held LEFT OUTER
JOIN moved ON true;
-- attempts_1 = 0
-- coalesce_1 = 'discarded'
-- concat_1 = 'discarded by '
-- concat_ws_1 = ': '
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'discarded'
-- jsonb_build_object_4 = 'by'
-- jsonb_build_object_5 = 'why'
-- jsonb_build_object_6 = 'entry'
-- param_1 = 'dead'
-- param_2 = 'pending'
-- param_3 = 'waiting'
