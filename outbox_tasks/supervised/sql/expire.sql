-- Takes back tasks that did not begin to run in time after they were handed over, and runs whose workers are silent. Of
-- the first no attempt is spent, and the next wait is twice as long; of the others nobody knows how far they came.
-- most: tasks. Returns destination and cause of each.
WITH ended AS (
  DELETE FROM :schema.outbox_runs r
  WHERE r.ctid = ANY (ARRAY(SELECT ctid FROM :schema.outbox_runs WHERE locked_until <= now() ORDER BY locked_until
                            LIMIT :most::integer FOR UPDATE SKIP LOCKED))
  RETURNING r.*
), back AS MATERIALIZED (
  SELECT m.seq, m.destination, m.key, m.priority, octet_length(m.payload) AS size, now() AS due, now() AS since, ended.holder,
         ended.unheard, ended.state = 'running' AS ran, ended.attempts AS attempt,
         ended.attempts - (ended.state <> 'running')::integer AS attempts,
         CASE WHEN ended.state = 'running' THEN 'worker_lost' ELSE 'not_started' END AS cause,
         :schema.outbox_goes_alone(t.code) AS alone
  FROM ended
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = ended.seq LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = ended.seq LIMIT 1) AS t ON true
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, attempts, unheard, code, error, history)
  SELECT seq, attempts, CASE WHEN ran THEN 0 ELSE unheard + 1 END, cause,
         CASE WHEN ran THEN format('attempt %s ran on %s, and its worker was lost: it died, or could not say for too long'
                                   ' that it runs', attempt, holder)
              ELSE 'the broker had it, and no worker began it in time: it was lost there, or it waits in a long queue' END,
         :schema.outbox_noted('[]', jsonb_build_object('at', clock_timestamp(), 'what', 'claimed again', 'attempt', attempt,
                                                       'code', cause, 'by', holder))
  FROM back
  ON CONFLICT (seq) DO UPDATE SET
    attempts = excluded.attempts, unheard = excluded.unheard,
    -- An earlier error stays, unless the task may have had its effect: it may be the cause of a repetition.
    code = CASE WHEN excluded.code = 'worker_lost' THEN excluded.code ELSE coalesce(t.code, excluded.code) END,
    error = CASE WHEN excluded.code = 'worker_lost' THEN excluded.error ELSE coalesce(t.error, excluded.error) END,
    history = :schema.outbox_noted(t.history, excluded.history -> 0)
), freed AS (
  UPDATE :schema.outbox_keys k SET token = NULL, due = clock_timestamp(), more = true
  FROM back WHERE k.destination = back.destination AND k.key = back.key
),
  \ir ../../database/sql/parts/put_back.sql
SELECT destination, cause FROM back
