-- Makes messages due at once that wait for another attempt. Their attempts, their history and the order of their keys stay. A
-- single that waits for Celery's retry loses its lease, so its task begins nothing, and the next claim takes the message anew.
--
-- ids; entry, person, reason, and what is returned: as for redrive.sql. An act tries each message once. What
-- somebody else takes at this moment is skipped. The key's row says only when to look: what a take finds decides.
WITH asked AS MATERIALIZED (
  SELECT m.seq, m.id, m.destination, m.key, m.priority, octet_length(m.payload) AS size, t.attempts,
         :schema.outbox_goes_alone(t.code) AS alone
  FROM :schema.outbox_messages m
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = m.seq LIMIT 1) AS t
  WHERE m.id = ANY (:ids::uuid[]) AND t.code IS NOT NULL
    AND NOT t.history @> jsonb_build_array(jsonb_build_object('what', 'tried', 'entry', :entry::bigint))
), waits AS MATERIALIZED (
  SELECT w.seq, w.attempts, w.alone FROM asked CROSS JOIN LATERAL (
    SELECT * FROM :schema.outbox_waiting w WHERE w.seq = asked.seq AND w.due > now() FOR UPDATE SKIP LOCKED) AS w
), woken AS (
  DELETE FROM :schema.outbox_waiting w USING waits WHERE w.seq = waits.seq
), single AS MATERIALIZED (
  SELECT l.token, l.seqs[1] AS seq FROM :schema.outbox_leases l
  WHERE l.begun_at IS NULL AND l.locked_until > now() AND l.seqs && ARRAY(SELECT seq FROM asked WHERE attempts > 0)
    AND NOT EXISTS (SELECT FROM :schema.outbox_destinations d WHERE d.name = l.destination AND d.probe = l.token)
  FOR UPDATE OF l SKIP LOCKED
), ended AS (
  DELETE FROM :schema.outbox_leases l USING single WHERE l.token = single.token
), kept AS MATERIALIZED (
  SELECT h.ctid AS at, asked.seq FROM asked JOIN :schema.outbox_held h
    ON h.destination = asked.destination AND h.key = asked.key AND h.seq = asked.seq AND h.since > now()
  FOR UPDATE OF h SKIP LOCKED
), moved AS (
  UPDATE :schema.outbox_held h SET since = now() FROM kept WHERE h.ctid = kept.at
), back AS MATERIALIZED (
  SELECT a.seq, now() AS due, now() AS since, p.attempts, p.alone, a.destination, a.key, a.priority, a.size
  FROM asked a JOIN (SELECT * FROM waits UNION ALL SELECT s.seq, a.attempts, a.alone FROM single s JOIN asked a ON a.seq = s.seq) AS p
    ON p.seq = a.seq
),
  \ir ../parts/put_back.sql
, done AS MATERIALIZED (
  SELECT a.* FROM asked a WHERE a.seq IN (SELECT seq FROM back UNION ALL SELECT seq FROM kept)
), queued AS (  -- a key that another lease or a run has stays busy
  INSERT INTO :schema.outbox_keys AS k (destination, key, due, more, first)
  SELECT destination, key, clock_timestamp(), true, min(seq) FROM done WHERE key IS NOT NULL GROUP BY destination, key
  ORDER BY destination, key
  ON CONFLICT (destination, key) DO UPDATE SET more = true,
    token = CASE WHEN k.token <> ALL (ARRAY(SELECT token FROM single)) THEN k.token END,
    due = CASE WHEN k.token IS NULL OR k.token = ANY (ARRAY(SELECT token FROM single)) THEN clock_timestamp() ELSE k.due END
), noted AS (
  UPDATE :schema.outbox_trouble t
  SET history = :schema.outbox_noted(t.history, jsonb_build_object(
        'at', clock_timestamp(), 'what', 'tried', 'by', :person::text, 'why', :reason::text, 'entry', :entry))
  FROM done WHERE t.seq = done.seq
), counted AS (
  UPDATE :schema.outbox_audit a SET count = a.count + (SELECT count(*) FROM done) WHERE a.seq = :entry
)
SELECT id::text FROM done
