-- A task asks to be run again: it is due after a wait, and says what the next copy says. Celery's own limit counts these,
-- so the attempt does not; but it has run, so it waits for a retry, and is not scheduled. Returns its id.
-- run: JSON rows of id, token, wait (seconds), data (the payload in base64), headers, content_type, code and error.
WITH said AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:run::json)
    AS r(id uuid, token uuid, wait float, data text, headers jsonb, content_type text, code text, error text)
), gone AS (
  DELETE FROM :schema.outbox_runs r USING said
  WHERE r.id = said.id AND r.token = said.token AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING r.*, said.code, said.error, said.data, said.headers, said.content_type,
            now() + said.wait * interval '1 second' AS due
), rewritten AS (
  UPDATE :schema.outbox_messages m
  SET payload = decode(gone.data, 'base64'), headers = gone.headers, content_type = gone.content_type, deliver_at = gone.due
  FROM gone WHERE m.seq = gone.seq
  RETURNING m.seq, octet_length(m.payload) AS size, m.priority
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
  SELECT seq, attempts - 1, code, error,
         :schema.outbox_noted('[]', jsonb_build_object(
           'at', clock_timestamp(), 'what', 'retried', 'attempt', attempts, 'by', holder, 'code', code,
           'error', left(error, 300)))
  FROM gone
  ON CONFLICT (seq) DO UPDATE SET attempts = excluded.attempts, code = excluded.code, error = excluded.error,
    since = NULL, history = :schema.outbox_noted(t.history, excluded.history -> 0)
), back AS MATERIALIZED (
  SELECT gone.seq, gone.due, gone.due AS since, greatest(gone.attempts - 1, 1) AS attempts, false AS alone, gone.destination, gone.key, r.priority, r.size
  FROM gone JOIN rewritten r ON r.seq = gone.seq
), freed AS (
  UPDATE :schema.outbox_keys k SET token = NULL, due = least(back.due, k.due), more = true
  FROM back WHERE k.destination = back.destination AND k.key = back.key
),
  \ir ../../database/sql/parts/put_back.sql
SELECT id::text FROM gone
