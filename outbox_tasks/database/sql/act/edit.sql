-- Replaces the payload of a dead letter, if nobody else has changed it. The audit keeps the former one.
--
-- message (its id); body, kind (content type); digest (SHA-256 of the former payload); person, reason. Returns its id, and
-- the entry of the audit. It waits for a redrive of the message that is under way: then there is nothing to edit any more.
WITH before AS MATERIALIZED (
  SELECT m.seq, m.id, m.payload, m.content_type
  FROM :schema.outbox_messages m JOIN :schema.outbox_dead d ON d.seq = m.seq
  WHERE m.id = :message::uuid AND sha256(m.payload) = :digest::bytea
  FOR UPDATE
), audited AS (
  INSERT INTO :schema.outbox_audit (who, why, action, target, facts, closed_at)
  SELECT :person::text, :reason::text, 'edit', id::text, jsonb_strip_nulls(jsonb_build_object(
           'former', translate(encode(payload, 'base64'), E'\n', ''), 'former_content_type', content_type,
           'size', length(:body::bytea), 'former_size', length(payload))), clock_timestamp()
  FROM before
  RETURNING seq
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, history)
  SELECT seq, :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'edited', 'by', :person::text,
                                                            'why', :reason::text))
  FROM before
  ON CONFLICT (seq) DO UPDATE SET history = :schema.outbox_noted(t.history, excluded.history -> 0)
)
UPDATE :schema.outbox_messages m SET payload = :body::bytea, content_type = :kind::text
FROM before CROSS JOIN audited
WHERE m.seq = before.seq
RETURNING m.id::text, audited.seq AS entry
