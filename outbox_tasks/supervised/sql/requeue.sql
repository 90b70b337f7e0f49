-- A worker has put its copy back into the broker, which may be gone with an early acknowledgement: a new copy is due, and the
-- first of the two to begin runs. Returns the id. run: JSON rows of id and token.
WITH again AS (
  UPDATE :schema.outbox_runs r
  SET state = 'handed over', token = NULL, handed_at = clock_timestamp(), locked_until = clock_timestamp()
  FROM json_to_recordset(:run::json) AS said(id uuid, token uuid)
  WHERE r.id = said.id AND r.token = said.token AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING r.*
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
  SELECT seq, attempts - 1, 'requeued', 'its worker put it back into the queue',
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'requeued', 'attempt', attempts,
                                                       'by', holder))
  FROM again
  ON CONFLICT (seq) DO UPDATE SET code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
)
SELECT id::text FROM again
