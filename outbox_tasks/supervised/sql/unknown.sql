-- A worker does not know the task, and has dropped its copy: it is due in `wait` seconds, twice as long after each time
-- that nobody began it, unless it is due sooner. Returns its id. id; content: see parts/copy.sql; wait; holder.
WITH sooner AS (
  UPDATE :schema.outbox_runs r
  SET locked_until = clock_timestamp() + :wait::float * 2 ^ least(r.unheard, 6) * interval '1 second'
  FROM :schema.outbox_messages m
  WHERE r.id = :id::uuid AND m.seq = r.seq AND r.state = 'handed over'
    AND r.locked_until > clock_timestamp() + :wait * 2 ^ least(r.unheard, 6) * interval '1 second'
    AND set_config('synchronous_commit', 'off', true) = 'off' AND
  \ir parts/copy.sql
  RETURNING r.seq, r.id, r.attempts
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, history)
  SELECT seq, attempts - 1,
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'not known', 'by', :holder::text))
  FROM sooner
  ON CONFLICT (seq) DO UPDATE SET history = :schema.outbox_noted(t.history, excluded.history -> 0)
)
SELECT id::text FROM sooner
