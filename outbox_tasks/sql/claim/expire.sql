-- Takes back bundles whose leases have run out. If the send had begun, nobody knows how it ended: the attempt counts,
-- and each message travels alone from then on. Each message says what happened.
--
-- most: how many bundles; messages: how many these may have together, but one bundle is taken back in any case; since: an
-- earlier look found that no lease ends before. Returns destination, cause and seq of each message; and one row without a
-- number, which says when this looked, and how many bundles it took back.
WITH over AS MATERIALIZED (
  SELECT ctid AS at, locked_until, cardinality(seqs) AS count FROM :schema.outbox_leases
  WHERE locked_until <= now() AND locked_until >= :since::timestamptz
  ORDER BY locked_until LIMIT :most::integer FOR UPDATE SKIP LOCKED
), ended AS (
  DELETE FROM :schema.outbox_leases l
  WHERE l.ctid = ANY (ARRAY(
    SELECT at FROM (SELECT at, sum(count) OVER (ORDER BY locked_until, at) - count AS before FROM over) AS o
    WHERE before < :messages::integer))
  RETURNING l.*
), ours AS MATERIALIZED (
  SELECT m.seq, m.destination, m.key, m.priority, m.latest, octet_length(m.payload) AS size,
         ended.begun_at IS NOT NULL AS begun, ended.holder,
         -- What was never sent has been due all the time: so people see that nobody sends.
         CASE WHEN ended.begun_at IS NULL AND coalesce(t.attempts, 0) = 0 THEN coalesce(t.since, m.deliver_at, m.created_at)
              ELSE now() END AS since,
         CASE WHEN ended.begun_at IS NOT NULL THEN 'unsettled' ELSE 'lease_expired' END AS cause,
         coalesce(t.attempts, 0) + (ended.begun_at IS NOT NULL)::integer AS attempts, coalesce(t.code, '') AS code
  FROM ended CROSS JOIN LATERAL unnest(ended.seqs) AS s
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = s LIMIT 1) AS t ON true
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
  SELECT seq, attempts, cause, error,
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'claimed again', 'attempt', attempts,
                                               'code', cause, 'by', holder))
  FROM ours CROSS JOIN LATERAL (
    SELECT CASE cause
      WHEN 'unsettled' THEN format('attempt %s was begun by %s and never settled: it died or lost its lease; the message'
                                   ' may have been delivered', attempts, holder)
      ELSE format('claimed by %s, and the lease ran out before it was begun', holder) END AS error
  ) AS said
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts,
    -- An earlier error stays, unless the message may have been delivered: it may be the cause of a repetition.
    code = CASE WHEN excluded.code = 'unsettled' THEN excluded.code ELSE coalesce(t.code, excluded.code) END,
    error = CASE WHEN excluded.code = 'unsettled' THEN excluded.error ELSE coalesce(t.error, excluded.error) END,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), placed AS (
  SELECT ours.*, begun OR code IN ('unsettled', 'failed_together', 'failed_alone') AS alone FROM ours
), first AS (
  INSERT INTO :schema.outbox_held (seq, since, size, attempts, priority, alone, latest, destination, key, free)
  SELECT seq, since, size, attempts, priority, alone, latest, destination, key, true FROM placed WHERE key IS NOT NULL
), ready AS (
  INSERT INTO :schema.outbox_ready (seq, since, size, attempts, priority, alone, latest, destination)
  SELECT seq, since, size, attempts, priority, alone, latest, destination FROM placed WHERE key IS NULL
)
SELECT destination, cause, seq, NULL::timestamptz AS at, NULL::bigint AS bundles FROM ours
UNION ALL
SELECT NULL, NULL, NULL, now(), (SELECT count(*) FROM ended)
