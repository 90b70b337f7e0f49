-- A task has run, or is discarded: the journal has it, and what follows it is written. Returns its id.
--
-- run: JSON rows of id and token; if it was discarded, state, code and error; if it is to be kept what the task returned,
-- value (as JSON) and ran (seconds). row: what follows, as for write/publish.sql, or []. soon: the commit need not wait
-- for the disk. In an application's own transaction it is not soon: how that commits is the application's choice, and the
-- transaction remembers the end, until a savepoint is rolled back: see completed.sql.
WITH said AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:run::json) AS r(id uuid, token uuid, state text, code text, error text, value text, ran float)
), gone AS (
  DELETE FROM :schema.outbox_runs r USING said WHERE r.id = said.id AND r.token = said.token
  RETURNING r.*, said.state AS became, said.code, said.error, said.value, said.ran
), journalled AS (
  INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
  SELECT seq, coalesce(became, 'sent'), 1, destination, holder, int8multirange(int8range(seq, seq, '[]')) FROM gone
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
  SELECT seq, attempts - (became IS NULL)::integer, code, error,
         :schema.outbox_noted('[]', jsonb_build_object(
           'at', clock_timestamp(), 'what', coalesce(became, 'returned'), 'attempt', attempts, 'by', holder, 'code', code,
           'error', left(error, 300), 'value', value, 'ran', ran))
  FROM gone WHERE became IS NOT NULL OR ran IS NOT NULL
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts, code = coalesce(excluded.code, t.code), error = coalesce(excluded.error, t.error),
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
)
SELECT gone.id::text,
       CASE WHEN :soon::boolean THEN set_config('synchronous_commit', 'off', true)
            ELSE set_config('outbox.completed', gone.id::text, true) END AS noted,
       :schema.outbox_free(gone.destination, gone.key) AS freed, :schema.outbox_write(:row::json) AS followed
FROM gone
