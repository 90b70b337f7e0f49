WITH before AS (
  SELECT outbox_messages.id AS id, outbox_messages.payload AS payload, outbox_messages.content_type AS content_type
  FROM outbox_messages
  WHERE outbox_messages.id = %(message)s::UUID
    AND outbox_messages.status = 'dead'
    AND sha256(outbox_messages.payload) = %(digest)s
  FOR UPDATE
), changed AS (UPDATE outbox_messages SET payload=%(body)s, content_type=%(kind)s::VARCHAR, history=CAST(outbox_noted(outbox_messages.history, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_1)s::VARCHAR, clock_timestamp(), %(jsonb_build_object_2)s::VARCHAR, %(jsonb_build_object_3)s::VARCHAR, %(jsonb_build_object_4)s::VARCHAR, %(person)s::VARCHAR, %(jsonb_build_object_5)s::VARCHAR, %(reason)s::VARCHAR))) AS JSONB) FROM before WHERE outbox_messages.id = ANY (ARRAY[before.id]) RETURNING CAST(outbox_messages.id AS TEXT) AS id), audited AS (INSERT INTO outbox_audit (who, why, action, target, facts, closed_at) SELECT %(person)s::VARCHAR AS anon_1, %(reason)s::VARCHAR AS anon_2, 'edit', CAST(before.id AS TEXT) AS id, jsonb_strip_nulls(jsonb_build_object(%(jsonb_build_object_6)s::VARCHAR, translate(encode(before.payload, 'base64'), %(translate_1)s::VARCHAR, %(translate_2)s::VARCHAR), %(jsonb_build_object_7)s::VARCHAR, before.content_type, %(jsonb_build_object_8)s::VARCHAR, length(%(body)s), %(jsonb_build_object_9)s::VARCHAR, length(before.payload))) AS jsonb_strip_nulls_1, clock_timestamp() AS clock_timestamp_1 FROM before RETURNING outbox_audit.seq)
SELECT changed.id, audited.seq AS entry
FROM changed
JOIN audited ON true;
-- jsonb_build_object_1 = 'at'
-- jsonb_build_object_2 = 'what'
-- jsonb_build_object_3 = 'edited'
-- jsonb_build_object_4 = 'by'
-- jsonb_build_object_5 = 'why'
-- jsonb_build_object_6 = 'former'
-- jsonb_build_object_7 = 'former_content_type'
-- jsonb_build_object_8 = 'size'
-- jsonb_build_object_9 = 'former_size'
-- translate_1 = '\n'
-- translate_2 = ''
