-- Makes dead letters due again, with all their attempts, at their old place in the order of their key. Their last error
-- stays, so a message that killed a worker still travels alone. From here on max_age counts anew.
--
-- ids; until: the latest time of death; entry (of the audit), person, reason. Returns the ids of what it
-- changed. What somebody else takes at this moment is skipped. A claim that looks at the key is waited for.
WITH picked AS MATERIALIZED (
  SELECT d.seq
  FROM :schema.outbox_messages m CROSS JOIN LATERAL (
    SELECT d.seq FROM :schema.outbox_dead d
    WHERE d.seq = m.seq AND d.dead_at <= :until::timestamptz FOR UPDATE SKIP LOCKED
  ) AS d
  WHERE m.id = ANY (:ids::uuid[])
), gone AS (
  DELETE FROM :schema.outbox_dead d USING picked WHERE d.seq = picked.seq RETURNING d.seq
), back AS MATERIALIZED (
  SELECT m.seq, m.id, m.destination, m.key, m.priority, m.deliver_at, octet_length(m.payload) AS size, now() AS due, now() AS since,
         coalesce(t.attempts, 0) AS spent, 0 AS attempts, :schema.outbox_goes_alone(t.code) AS alone
  FROM gone
  CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = gone.seq LIMIT 1) AS m
  LEFT JOIN LATERAL (SELECT * FROM :schema.outbox_trouble t WHERE t.seq = gone.seq LIMIT 1) AS t ON true
), noted AS (
  INSERT INTO :schema.outbox_trouble AS t (seq, since, history)
  SELECT seq, due, :schema.outbox_noted('[]', jsonb_build_object(
           'at', due, 'what', 'redriven', 'by', :person::text, 'why', :reason::text, 'entry', :entry::bigint,
           'attempts', spent, 'deliver_at', deliver_at))
  FROM back ORDER BY seq
  ON CONFLICT (seq) DO UPDATE SET attempts = 0, spared = 0, outages = 0, unheard = 0, since = excluded.since,
                                  history = :schema.outbox_noted(t.history, excluded.history -> 0)
),
  \ir ../parts/put_back.sql
, queued AS (  -- a busy key stays busy; behind another dead letter of the key, and an earlier one, nothing goes
  INSERT INTO :schema.outbox_keys AS k (destination, key, due, more, first)
  SELECT destination, key, clock_timestamp(), true, min(seq) FROM back WHERE key IS NOT NULL GROUP BY destination, key
  ORDER BY destination, key
  ON CONFLICT (destination, key) DO UPDATE SET more = true, first = least(k.first, excluded.first),
    due = CASE WHEN k.due = 'infinity' AND EXISTS (
      SELECT FROM :schema.outbox_dead d WHERE d.destination = k.destination AND d.key = k.key AND d.seq < excluded.first)
      THEN k.due ELSE clock_timestamp() END
), counted AS (  -- the audit keeps the first 1000 ids
  UPDATE :schema.outbox_audit a SET
    count = a.count + (SELECT count(*) FROM back),
    facts = a.facts || jsonb_build_object('changed', known.ids || (
      SELECT coalesce(jsonb_agg(b.id), '[]')
      FROM (SELECT id FROM back LIMIT greatest(0, 1000 - jsonb_array_length(known.ids))) AS b))
  FROM (SELECT coalesce(o.facts -> 'changed', '[]') AS ids FROM :schema.outbox_audit o WHERE o.seq = :entry::bigint) AS known
  WHERE a.seq = :entry
)
SELECT id::text FROM back
