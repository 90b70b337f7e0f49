-- Writes copies of archived messages, due now, behind fresh messages, in the order of the rows. A copy whose id is that of
-- a message at work is not written. Call it after replay_alone.sql, in the same transaction.
--
-- row: JSON rows of what a copy has of its own (id, destination, aggregate_id, headers), and the number of its original.
-- person, reason; entry (of the audit, which counts them, and keeps `place`, a fact: how far the replay got). Returns the
-- ids of the copies that were written.
WITH asked AS MATERIALIZED (
  SELECT * FROM ROWS FROM (json_to_recordset(:row::json) AS (
           original bigint, id uuid, destination text, aggregate_id text, headers jsonb))
         WITH ORDINALITY AS r(original, id, destination, aggregate_id, headers, place)
), fresh AS MATERIALIZED (
  SELECT * FROM (SELECT DISTINCT ON (id) * FROM asked ORDER BY id, place) AS r
  WHERE NOT EXISTS (
    SELECT FROM :schema.outbox_messages m
    WHERE m.id = r.id AND NOT EXISTS (SELECT FROM :schema.outbox_journal j
                                      WHERE j.seqs @> m.seq AND j.first <= m.seq AND j.first >= (m.seq >> 16) << 16))
  ORDER BY place
), copy AS MATERIALIZED (
  SELECT CASE WHEN m.key IS NULL THEN :schema.outbox_number() ELSE :schema.outbox_ordered(fresh.destination, m.key) END AS seq,
         fresh.*, m.id AS "of", m.event_type, m.aggregate_type, m.key, m.content_type, m.created_at, m.payload, clock.now
  FROM fresh CROSS JOIN LATERAL (SELECT * FROM :schema.outbox_messages m WHERE m.seq = fresh.original LIMIT 1) AS m
  CROSS JOIN (SELECT clock_timestamp() AS now) AS clock
), said AS (
  INSERT INTO :schema.outbox_messages (seq, id, created_at, deliver_at, priority, event_type, destination, key,
                                       aggregate_type, aggregate_id, content_type, headers, payload)
  SELECT seq, id, created_at, now, -1, event_type, destination, key, aggregate_type, aggregate_id, content_type, headers,
         payload
  FROM copy  -- max_age counts from deliver_at
), noted AS (
  INSERT INTO :schema.outbox_trouble (seq, history)
  SELECT seq, :schema.outbox_noted('[]', jsonb_build_object('at', now, 'what', 'replayed', 'by', :person::text,
                                     'why', :reason::text, 'of', "of", 'entry', :entry::bigint))
  FROM copy
), ready AS (
  INSERT INTO :schema.outbox_ready (seq, since, size, priority, destination, key)
  SELECT seq, now, octet_length(payload), -1, destination, key FROM copy
), counted AS (
  UPDATE :schema.outbox_audit a SET count = a.count + (SELECT count(*) FROM copy), facts = a.facts || :place::jsonb
  WHERE a.seq = :entry::bigint
)
SELECT id::text FROM copy ORDER BY place
