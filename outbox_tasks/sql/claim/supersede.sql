-- Discards failed messages that newer ones of their keys replace, and that a claim has just taken, in the same
-- transaction. message: JSON rows of seq, destination and key.
WITH said AS (
  SELECT * FROM json_to_recordset(:message::json) AS r(seq bigint, destination text, key text)
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, code, error, history)
  SELECT seq, 'superseded', 'it had failed, and there is a newer message of its key',
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'discarded', 'code', 'superseded'))
  FROM said
  ON CONFLICT (seq) DO UPDATE SET code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), freed AS (
  SELECT :schema.outbox_free(destination, array_agg(key)) FROM said GROUP BY destination
)
INSERT INTO :schema.outbox_journal (first, state, count, destination, seqs)
SELECT seq, 'discarded', 1, destination, int8multirange(int8range(seq, seq, '[]')) FROM said
RETURNING first, (SELECT count(*) FROM freed)
