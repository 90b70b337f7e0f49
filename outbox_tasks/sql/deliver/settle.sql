-- Records what became of a bundle whose messages did not all arrive. Those without a row in `said` were sent.
--
-- token; destination; patience: outages in a row that do not count while others get through.
-- said: JSON rows of id, step, wait (seconds), attempt, code, error, and token (of a retry).
--   retry     again soon, by Celery: leased for `wait` seconds under a token of its own
--   release   again after `wait` seconds
--   outage    the same, and the attempt does not count
--   behind    an earlier message of its key failed: it was not sent
--   handed    a supervised task: it must begin to run within `wait` seconds
--   dead · discarded
-- Returns the ids of the messages that were still ours.
WITH done AS MATERIALIZED (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND l.destination = :destination::text
    AND set_config('synchronous_commit', 'off', true) = 'off'
  RETURNING l.*
), ours AS MATERIALIZED (
  SELECT m.seq, m.id, m.event_type, m.destination, m.key, m.priority, m.latest, octet_length(m.payload) AS size,
         coalesce(t.since, m.deliver_at, m.created_at) AS since, done.holder, clock.now, clock.now + r.wait * interval '1 second' AS due,
         coalesce(r.step, 'sent') AS step, r.attempt, r.code, r.error, r.token, coalesce(t.outages, 0) AS outages,
         -- An outage says nothing about the message, unless it alone meets many. A failure of several together says
         -- nothing about each: nobody knows which of them caused it.
         r.attempt - (r.step = 'behind' OR r.code = 'failed_together' OR r.step = 'outage' AND (
           coalesce(t.outages, 0) + 1 < :patience::integer
           OR EXISTS (SELECT FROM :schema.outbox_destinations d WHERE d.name = :destination AND d.opened_at IS NOT NULL)
         ))::integer AS attempts,
         coalesce(r.code IN ('unsettled', 'failed_together', 'failed_alone'), false) AS alone
  FROM done CROSS JOIN (SELECT clock_timestamp() AS now) AS clock CROSS JOIN LATERAL unnest(done.seqs) AS s
  JOIN :schema.outbox_messages m ON m.seq = s
  LEFT JOIN :schema.outbox_trouble t ON t.seq = s
  LEFT JOIN json_to_recordset(:said::json) AS r(id uuid, step text, wait float, attempt integer, code text, error text,
                                                token uuid) ON r.id = m.id
), journalled AS (
  INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
  SELECT min(seq), step, count(*), destination, holder, range_agg(int8range(seq, seq, '[]'))
  FROM ours WHERE step IN ('sent', 'discarded') GROUP BY step, destination, holder, seq >> 16
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, outages, code, error, history)
  SELECT seq, attempts, (step = 'outage')::integer, code, error,
         :schema.outbox_noted('[]', jsonb_build_object(
           'at', now, 'what', CASE step WHEN 'retry' THEN 'failed' WHEN 'release' THEN 'failed' ELSE step END,
           'attempt', attempt, 'code', code, 'error', left(error, 300), 'by', holder))
  FROM ours WHERE step IN ('retry', 'release', 'outage', 'dead', 'discarded')
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts,
    outages = CASE WHEN excluded.outages > 0 THEN least(t.outages, 1000000000) + 1 ELSE 0 END,
    code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), retried AS (
  INSERT INTO :schema.outbox_leases (token, locked_until, destination, holder, seqs, keys)
  SELECT token, due, destination, holder, ARRAY[seq], CASE WHEN key IS NOT NULL THEN ARRAY[key] END
  FROM ours WHERE step = 'retry'
), later AS (
  INSERT INTO :schema.outbox_waiting (seq, due, since, size, attempts, priority, alone, latest, destination, key)
  SELECT seq, due, since, size, attempts, priority, alone, latest, destination, key
  FROM ours WHERE step IN ('release', 'outage')
), behind AS (
  INSERT INTO :schema.outbox_held (seq, since, size, attempts, priority, alone, latest, destination, key, free)
  SELECT seq, since, size, attempts, priority, alone, latest, destination, key, true FROM ours WHERE step = 'behind'
), died AS (
  INSERT INTO :schema.outbox_dead (seq, destination, key, kin)
  SELECT seq, destination, key, :schema.outbox_error_group(destination, event_type, code, error)
  FROM ours WHERE step = 'dead'
), handed AS (
  INSERT INTO :schema.outbox_runs (seq, state, locked_until, attempts, id, destination, key, holder)
  SELECT seq, 'handed over', due, attempt, id, destination, key, holder FROM ours WHERE step = 'handed'
), freed AS (
  SELECT :schema.outbox_free(destination, keys) FROM done
), recovered AS (
  \ir parts/recovered.sql
  AND EXISTS (SELECT FROM ours WHERE step IN ('sent', 'discarded', 'handed'))
)
SELECT id::text FROM ours CROSS JOIN freed
