-- A task has failed for good: it is a dead letter, and what follows its failure is written. Returns its id.
-- run: JSON rows of id, token, code, error, traceback and ran: seconds. row: as for end.sql. blocks: the destinations whose dead
-- letters hold up their keys.
WITH said AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:run::json) AS r(id uuid, token uuid, code text, error text, traceback text, ran float)
), gone AS (
  DELETE FROM :schema.outbox_runs r USING said
  WHERE r.id = said.id AND r.token = said.token AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING r.*, said.code, said.error, said.traceback, said.ran, clock_timestamp() AS now
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
  SELECT seq, attempts, code, error,
         :schema.outbox_noted('[]', jsonb_build_object(
           'at', now, 'what', 'dead', 'attempt', attempts, 'by', holder, 'code', code,
           'error', left(error, 300), 'traceback', traceback, 'ran', ran))
  FROM gone
  ON CONFLICT (seq) DO UPDATE SET attempts = excluded.attempts, code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), died AS (
  INSERT INTO :schema.outbox_dead (seq, dead_at, destination, key, kin)
  SELECT gone.seq, gone.now, gone.destination, gone.key,
         :schema.outbox_error_group(gone.destination, m.event_type, gone.code, gone.error)
  FROM gone JOIN :schema.outbox_messages m ON m.seq = gone.seq
)
SELECT gone.id::text,
       :schema.outbox_free(gone.destination, gone.key, CASE WHEN gone.destination = ANY (:blocks::text[]) THEN 'infinity'
                                                            ELSE clock_timestamp() END) AS freed,
       :schema.outbox_write(:row::json) AS followed
FROM gone
