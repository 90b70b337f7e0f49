-- Makes dead letters of messages that `feeds/copy.sql` has just written, in the same transaction.
--
-- message: JSON rows of id, code and error. destination: theirs.
WITH said AS (
  SELECT m.seq, m.event_type, m.key, r.code, r.error
  FROM json_to_recordset(:message::json) AS r(id uuid, code text, error text) JOIN :schema.outbox_messages m ON m.id = r.id
), gone AS (
  DELETE FROM :schema.outbox_ready r USING said
  WHERE r.seq = said.seq AND r.destination = :destination RETURNING r.seq
), noted AS (
  INSERT INTO :schema.outbox_trouble (seq, code, error, history)
  SELECT seq, code, error, :schema.outbox_noted('[]', jsonb_build_object(
           'at', clock_timestamp(), 'what', 'dead', 'code', code, 'error', left(error, 300)))
  FROM said JOIN gone USING (seq)
)
INSERT INTO :schema.outbox_dead (seq, destination, kin, key)
SELECT seq, :destination, :schema.outbox_error_group(:destination, event_type, code, error), key
FROM said JOIN gone USING (seq)
