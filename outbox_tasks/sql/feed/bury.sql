-- Makes dead letters of messages that `feed/copy.sql` has just written, in the same transaction.
--
-- message: JSON rows of id and error. destination: theirs.
WITH said AS (
  SELECT m.seq, m.event_type, r.error
  FROM json_to_recordset(:message::json) AS r(id uuid, error text) JOIN :schema.outbox_messages m ON m.id = r.id
), gone AS (
  DELETE FROM :schema.outbox_ready r USING said
  WHERE r.seq = said.seq AND r.destination = :destination AND r.key IS NULL RETURNING r.seq
), noted AS (
  INSERT INTO :schema.outbox_trouble (seq, code, error, history)
  SELECT seq, 'unreadable', error, :schema.outbox_noted('[]', jsonb_build_object(
           'at', clock_timestamp(), 'what', 'dead', 'code', 'unreadable', 'error', left(error, 300)))
  FROM said JOIN gone USING (seq)
)
INSERT INTO :schema.outbox_dead (seq, destination, kin)
SELECT seq, :destination, :schema.outbox_error_group(:destination, event_type, 'unreadable', error)
FROM said JOIN gone USING (seq)
