-- Records what became of messages of a bundle. Those that are not named stay in its lease.
--
-- token; destination; patience: a message's outages in a row are spared if they are fewer than this.
-- said: JSON rows of id, step, wait (seconds), attempt, code, error, and token (of a retry).
--   sent
--   retry     again soon, by Celery: leased for `wait` seconds under a token of its own
--   release   again after `wait` seconds
--   outage    the same, and the attempt is mostly spared: it does not count against max_attempts
--   behind    an earlier message of its key failed: it was not sent
--   handed    a supervised task: it must begin to run within `wait` seconds, twice as long after each time it did not
--   dead · discarded
-- Returns the ids of the messages that were still ours.
WITH lease AS MATERIALIZED (
  SELECT l.* FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND l.destination = :destination::text
    AND set_config('synchronous_commit', 'off', true) = 'off'
  FOR UPDATE
), ours AS MATERIALIZED (
  SELECT m.seq, m.id, m.event_type, m.destination, m.key, m.priority, m.latest, octet_length(m.payload) AS size,
         coalesce(t.since, m.deliver_at, m.created_at) AS since, lease.holder,
         clock.now, clock.now + r.wait * interval '1 second' AS due,
         r.step, r.attempt, r.code, r.error, r.token, coalesce(t.outages, 0) AS outages, coalesce(t.unheard, 0) AS unheard,
         least(r.attempt, 30000) - (r.step = 'behind')::integer AS attempts,
         -- An outage says nothing about the message. But if the message has met more outages in a row than the destination,
         -- others get through, and the message may be the cause. A failure of several messages together says nothing about
         -- each of them: nobody knows which of them caused it.
         coalesce(t.spared, 0) + (coalesce(r.code = 'failed_together', false) OR r.step = 'outage' AND (
           coalesce(t.outages, 0) + 1 < :patience::integer
           OR EXISTS (SELECT FROM :schema.outbox_destinations d
                      WHERE d.name = :destination AND (d.opened_at IS NOT NULL OR d.failures > t.outages))
         ))::integer AS spared,
         coalesce(r.code IN ('unsettled', 'failed_together', 'failed_alone'), false) AS alone
  FROM lease CROSS JOIN (SELECT clock_timestamp() AS now) AS clock CROSS JOIN LATERAL unnest(lease.seqs) AS s
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
  -- A writer may have given two messages one id: then one of their verdicts counts for both.
  JOIN (SELECT DISTINCT ON (id) * FROM json_to_recordset(:said::json) AS r(
          id uuid, step text, wait float, attempt integer, code text, error text, token uuid)) AS r ON r.id = m.id
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = s LIMIT 1) AS t ON true
), ended AS (
  DELETE FROM :schema.outbox_leases l USING lease
  WHERE l.token = lease.token AND (SELECT count(*) FROM ours) = cardinality(lease.seqs)
  RETURNING l.destination, l.keys
), shortened AS (
  UPDATE :schema.outbox_leases l
  SET seqs = ARRAY(SELECT s FROM unnest(lease.seqs) WITH ORDINALITY AS u(s, place)
                   WHERE s NOT IN (SELECT seq FROM ours) ORDER BY place)
  FROM lease WHERE l.token = lease.token AND (SELECT count(*) FROM ours) BETWEEN 1 AND cardinality(lease.seqs) - 1
  RETURNING l.destination, l.keys
), journalled AS (
  INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
  SELECT min(seq), step, count(*), destination, holder, range_agg(int8range(seq, seq, '[]'))
  FROM ours WHERE step IN ('sent', 'discarded') GROUP BY step, destination, holder, seq >> 16
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, spared, outages, code, error, history)
  SELECT seq, attempts, spared, (step = 'outage')::integer, code, error,
         :schema.outbox_noted('[]', jsonb_build_object(
           'at', now, 'what', CASE step WHEN 'retry' THEN 'failed' WHEN 'release' THEN 'failed' ELSE step END,
           'attempt', attempt, 'code', code, 'error', left(error, 300), 'by', holder))
  FROM ours WHERE step IN ('retry', 'release', 'outage', 'dead', 'discarded')
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts, spared = excluded.spared,
    outages = CASE WHEN excluded.outages > 0 THEN least(t.outages, 1000000000) + 1 ELSE 0 END,
    code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), reached AS (
  UPDATE :schema.outbox_trouble t SET outages = 0
  WHERE t.seq = ANY (ARRAY(SELECT seq FROM ours WHERE step = 'handed')) AND t.outages > 0
), retried AS (
  INSERT INTO :schema.outbox_leases (token, locked_until, destination, holder, seqs, keys)
  SELECT token, max(due), destination, holder, array_agg(seq ORDER BY seq), array_agg(key) FILTER (WHERE key IS NOT NULL)
  FROM ours WHERE step = 'retry' GROUP BY token, destination, holder
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
  INSERT INTO :schema.outbox_runs (seq, state, locked_until, attempts, unheard, id, destination, key, holder)
  SELECT seq, 'handed over', now + (due - now) * 2 ^ least(unheard, 6), attempt, unheard, id, destination, key, holder
  FROM ours WHERE step = 'handed'
), freed AS (
  SELECT :schema.outbox_free(destination, keys) FROM (SELECT * FROM ended UNION ALL SELECT * FROM shortened) AS l
), recovered AS (
  \ir parts/recovered.sql
  AND EXISTS (SELECT FROM ours WHERE step IN ('sent', 'discarded', 'handed'))
)
SELECT id::text FROM ours CROSS JOIN freed
