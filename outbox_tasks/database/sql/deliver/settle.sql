-- Records what became of the messages of a lease, and ends the lease. For each message there are these cases, by its step:
--   sent, discarded   It goes to the journal.
--   dead              It is a dead letter, which holds up its key if `blocks`.
--   retry             Celery sends it again soon: its lease goes on for `wait` seconds under a new token. Only a single can have this.
--   later             It goes back to the table, and is due after `wait` seconds.
--   outage            The same. The attempt is mostly spared: then it does not count against max_attempts.
--   behind            It was not sent, because an earlier message of its key was not, or there was no time left. It is due now.
--   handed            It is a supervised task, which must begin to run within `wait` seconds; that time doubles whenever it did not.
--                     If a quick worker has begun it already, it is not in the lease any more, and its run has its key.
--
-- token; destination; blocks; spared_outages: outages in a row of a message are spared if they are fewer; verdict: JSON rows of seq, step,
-- wait (seconds), attempts (with this one, if it was sent), code, error, and token (of a retry). If code is null, the last error stays.
-- Returns the numbers of the messages that were still in the lease, and whether more messages of their keys are due.
WITH lease AS MATERIALIZED (
  SELECT l.* FROM :schema.outbox_leases l
  WHERE l.token = :token::uuid AND l.destination = :destination::text
    AND set_config('synchronous_commit', 'off', true) = 'off'
  FOR UPDATE
), ours AS MATERIALIZED (  -- keeps: a run or a retry still has the key
  SELECT m.seq, m.id, m.event_type, m.destination, m.key, m.priority, octet_length(m.payload) AS size,
         coalesce(t.since, m.deliver_at, m.created_at) AS since, lease.holder, now() + r.wait * interval '1 second' AS due,
         r.step, r.token, coalesce(r.code, t.code, 'attempts_exhausted') AS code, coalesce(r.error, t.error) AS error,
         least(r.attempts, 30000) AS attempts, coalesce(t.unheard, 0) AS unheard,
         -- An attempt is spared in two cases. 1. Several messages failed together: it is unknown which of them was the cause. 2. An
         -- outage, which says nothing about the message. But if the message has met more outages in a row than the destination,
         -- other messages get through, and this message may be the cause.
         coalesce(t.spared, 0) + (coalesce(r.code = 'failed_together', false) OR r.step = 'outage' AND (
           coalesce(t.outages, 0) + 1 < :spared_outages::integer
           OR EXISTS (SELECT FROM :schema.outbox_destinations d
                      WHERE d.name = :destination AND (d.opened_at IS NOT NULL OR d.failures > t.outages))
         ))::integer AS spared,
         :schema.outbox_goes_alone(CASE WHEN r.step = 'behind' THEN t.code ELSE r.code END) AS alone,
         bool_or(r.step IN ('handed', 'retry')) OVER (PARTITION BY m.key) AS keeps
  FROM lease CROSS JOIN json_to_recordset(:verdict::json) AS r(
    seq bigint, step text, wait float, attempts integer, code text, error text, token uuid)
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = r.seq LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = r.seq LIMIT 1) AS t ON true
  WHERE r.seq = ANY (lease.seqs)
), ended AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.token = (SELECT token FROM lease) AND NOT EXISTS (SELECT FROM ours WHERE step = 'retry')
), goes_on AS (
  UPDATE :schema.outbox_leases l SET token = ours.token, begun_at = NULL, locked_until = ours.due
  FROM ours WHERE l.token = :token AND ours.step = 'retry'
), goes_on_key AS (
  UPDATE :schema.outbox_keys k SET token = (SELECT token FROM ours WHERE step = 'retry')
  WHERE k.destination = :destination AND k.key = (SELECT key FROM ours WHERE step = 'retry') AND k.token = :token
), journalled AS (
  INSERT INTO :schema.outbox_journal (first, state, count, destination, holder, seqs)
  SELECT min(seq), step, count(*), destination, holder, range_agg(int8range(seq, seq, '[]'))
  FROM ours WHERE step IN ('sent', 'discarded') GROUP BY step, destination, holder, seq >> 16
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, spared, outages, code, error, history)
  SELECT seq, attempts, spared, (step = 'outage')::integer, code, error,
         :schema.outbox_noted('[]', jsonb_build_object(
           'at', clock_timestamp(), 'what', CASE WHEN step IN ('retry', 'later') THEN 'failed' ELSE step END,
           'attempt', attempts, 'code', code, 'error', left(error, 300), 'by', holder))
  FROM ours WHERE step IN ('retry', 'later', 'outage', 'dead', 'discarded')
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts, spared = excluded.spared,
    outages = CASE WHEN excluded.outages > 0 THEN least(t.outages, 1000000000) + 1 ELSE 0 END,
    code = excluded.code, error = excluded.error,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), reached AS (
  UPDATE :schema.outbox_trouble t SET outages = 0
  WHERE t.seq = ANY (ARRAY(SELECT seq FROM ours WHERE step = 'handed')) AND t.outages > 0
), died AS (
  INSERT INTO :schema.outbox_dead (seq, destination, key, kin)
  SELECT seq, destination, key, :schema.outbox_error_group(destination, event_type, code, error)
  FROM ours WHERE step = 'dead'
), handed AS (
  INSERT INTO :schema.outbox_runs (seq, state, locked_until, attempts, unheard, id, destination, key, holder)
  SELECT seq, 'handed over', now() + (due - now()) * 2 ^ least(unheard, 6), attempts, unheard, id, destination, key, holder
  FROM ours WHERE step = 'handed'
), back AS MATERIALIZED (
  SELECT seq, CASE WHEN step = 'behind' THEN now() ELSE due END AS due, since, attempts, alone, destination, key, priority, size
  FROM ours WHERE step IN ('later', 'outage', 'behind')
),
  \ir ../parts/put_back.sql
, freed AS (
  DELETE FROM :schema.outbox_keys k
  WHERE k.destination = :destination AND k.key = ANY (ARRAY(SELECT DISTINCT key FROM ours WHERE key IS NOT NULL AND NOT keeps))
    AND k.token = :token
  RETURNING k.key, k.due, k.more, k.first
), stopped AS (  -- keys of which a message comes back, or is a dead letter that blocks
  SELECT key, max(CASE step WHEN 'dead' THEN 'infinity' WHEN 'behind' THEN '-infinity' ELSE due END) AS due, min(seq) AS first
  FROM ours WHERE key IS NOT NULL AND (step IN ('later', 'outage', 'behind') OR step = 'dead' AND :blocks::boolean)
  GROUP BY key
), again AS (
  INSERT INTO :schema.outbox_keys (destination, key, due, more, first)
  SELECT :destination, key, CASE WHEN bool_or(stops) THEN greatest(min(due), clock_timestamp()) ELSE clock_timestamp() END,
         true, min(first)
  FROM (SELECT key, due, more, first, false AS stops FROM freed  -- not a join: with hundreds of keys that would be a loop in a loop
        UNION ALL SELECT key, due, true, first, true FROM stopped) AS k
  GROUP BY key HAVING bool_or(more) AND NOT bool_and(stops) RETURNING due
), recovered AS (
  \ir parts/recovered.sql
  AND EXISTS (SELECT FROM ours WHERE step IN ('sent', 'handed') OR step = 'discarded' AND code <> 'superseded')  -- a superseded message was not sent
), more_held AS (  -- Notes on each key that a run keeps that more of it is held. So later takes need not change the key's row, and
  -- an application's transaction at REPEATABLE READ can free it without a serialization failure.
  UPDATE :schema.outbox_keys k SET more = true, first = least(k.first, b.first)
  FROM (SELECT key, min(seq) AS first FROM ours
        WHERE step IN ('handed', 'later', 'outage', 'behind') AND key IS NOT NULL AND keeps GROUP BY key) AS b
  WHERE k.destination = :destination AND k.key = b.key
)
SELECT seq, EXISTS (SELECT FROM again WHERE due <= clock_timestamp()) AS more FROM ours
