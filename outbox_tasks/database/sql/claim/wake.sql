-- Moves up to `most` messages whose wait is over to where a take finds them. Returns how many there were.
WITH due AS (
  DELETE FROM :schema.outbox_waiting w
  WHERE w.ctid = ANY (ARRAY(SELECT ctid FROM :schema.outbox_waiting WHERE due <= now() ORDER BY due LIMIT :most::integer
                            FOR UPDATE SKIP LOCKED))
  RETURNING w.*
), back AS MATERIALIZED (
  SELECT due.seq, now() AS due, due.due AS since, due.attempts, due.alone, due.destination, m.key, m.priority,
         octet_length(m.payload) AS size
  FROM due CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = due.seq LIMIT 1) AS m
),
  \ir ../parts/put_back.sql
SELECT count(*) FROM back
