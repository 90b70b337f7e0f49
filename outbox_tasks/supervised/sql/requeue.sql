-- A worker has put its copy back into the broker: the task is handed over again. Returns its id.
-- run: JSON rows of id, token and within: seconds in which a worker must begin it.
WITH again AS (
  UPDATE :schema.outbox_runs r
  SET state = 'handed over', token = NULL, handed_at = clock_timestamp(),
      locked_until = clock_timestamp() + said.within * interval '1 second'
  FROM json_to_recordset(:run::json) AS said(id uuid, token uuid, within float)
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
