-- Takes back leases that have run out: their messages are due again. There are three cases:
--   1. The send had begun. It may have arrived: the attempt counts, the message gets the error `unsettled`, and is sent by itself
--      from now on.
--   2. The send had not begun. The message gets a note, and spends no attempt.
--   3. The lease was given back: it has no holder. The message gets no note.
--
-- most: how many leases; messages: how many messages these may have together, but one lease is taken back in any case; since: leases
-- that ended before this time are not looked at. Returns destination and cause of each message; and one row with neither: when this
-- statement looked (at), and how many leases it took back (leases).
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
), back AS MATERIALIZED (
  SELECT m.seq, ended.token, m.destination, m.key, m.priority, octet_length(m.payload) AS size, now() AS due,
         coalesce(t.since, m.deliver_at, m.created_at) AS since, ended.holder,
         CASE WHEN ended.begun_at IS NOT NULL THEN 'unsettled' WHEN ended.holder IS NOT NULL THEN 'lease_expired' END AS cause,
         coalesce(t.attempts, 0) + (ended.begun_at IS NOT NULL)::integer AS attempts,
         ended.begun_at IS NOT NULL OR :schema.outbox_goes_alone(t.code) AS alone
  FROM ended CROSS JOIN LATERAL unnest(ended.seqs) AS s
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = s LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = s LIMIT 1) AS t ON true
), freed AS (
  UPDATE :schema.outbox_keys k
  SET due = clock_timestamp(), more = true, first = least(k.first, b.first),
      token = CASE WHEN EXISTS (SELECT FROM :schema.outbox_runs r WHERE r.destination = b.destination AND r.key = b.key) THEN k.token END
  FROM (SELECT destination, key, token, min(seq) AS first FROM back WHERE key IS NOT NULL GROUP BY destination, key, token) AS b
  WHERE k.destination = b.destination AND k.key = b.key AND k.token = b.token
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, code, error, history)
  SELECT seq, attempts, cause,
         CASE cause WHEN 'unsettled' THEN format('attempt %s was begun by %s and never settled: it died or lost its lease; the'
                                                 ' message may have been delivered', attempts, holder)
                    ELSE format('claimed by %s, and the lease ran out before it was begun', holder) END,
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'claimed again', 'attempt', attempts,
                                                       'code', cause, 'by', holder))
  FROM back WHERE cause IS NOT NULL
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts,
    -- An earlier error stays, unless the message may have been delivered: it may be the cause of a repetition.
    code = CASE WHEN excluded.code = 'unsettled' THEN excluded.code ELSE coalesce(t.code, excluded.code) END,
    error = CASE WHEN excluded.code = 'unsettled' THEN excluded.error ELSE coalesce(t.error, excluded.error) END,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
),
  \ir ../parts/put_back.sql
SELECT destination, cause, NULL::timestamptz AS at, NULL::bigint AS leases FROM back WHERE cause IS NOT NULL
UNION ALL
SELECT NULL, NULL, now(), (SELECT count(*) FROM ended)
