-- Writes messages, in the transaction of the application. Those that are due later wait; those with a key are ordered.
--
-- row: JSON rows. A payload is `text`, or `data` in base64. A message is due at `deliver_at`, or after `delay` seconds.
-- A message with a lease is its writer's to send: it is leased for `delay` seconds, and in no claim's way.
WITH row AS MATERIALIZED (
  SELECT CASE WHEN r.key IS NULL THEN :schema.outbox_number() ELSE :schema.outbox_ordered(r.destination, r.key) END AS seq,
         r.id, r.event_type, r.destination, r.key, r.aggregate_type, r.aggregate_id, r.content_type, r.headers, r.lease,
         coalesce(r.latest, false) AS latest,
         CASE r.priority WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END AS priority,
         coalesce(convert_to(r.text, 'UTF8'), decode(r.data, 'base64')) AS payload,
         clock.now AS created_at,
         coalesce(r.deliver_at, clock.now + coalesce(r.delay, 0) * interval '1 second') AS due
  FROM json_to_recordset(:row::json) AS r(
         id uuid, event_type text, aggregate_type text, aggregate_id text, destination text, key text, text text,
         data text, content_type text, headers jsonb, deliver_at timestamptz, delay float, priority text,
         latest boolean, lease uuid),
       (SELECT clock_timestamp() AS now) AS clock
), said AS (
  INSERT INTO :schema.outbox_messages (seq, id, created_at, deliver_at, priority, latest, event_type, destination, key,
                                       aggregate_type, aggregate_id, content_type, headers, payload)
  SELECT seq, id, created_at, CASE WHEN due > created_at AND lease IS NULL THEN due END, priority, latest, event_type,
         destination, key, aggregate_type, aggregate_id, content_type, headers, payload
  FROM row
), leased AS (
  INSERT INTO :schema.outbox_leases (token, locked_until, destination, seqs)
  SELECT lease, max(due), destination, array_agg(seq ORDER BY seq) FROM row WHERE lease IS NOT NULL
  GROUP BY lease, destination
), later AS (
  INSERT INTO :schema.outbox_waiting (seq, due, since, size, priority, latest, destination)
  SELECT seq, due, due, octet_length(payload), priority, latest, destination
  FROM row WHERE due > created_at AND lease IS NULL AND key IS NULL
)
INSERT INTO :schema.outbox_ready (seq, since, size, priority, latest, destination, key)
SELECT seq, due, octet_length(payload), priority, latest, destination, key
FROM row WHERE lease IS NULL AND (key IS NOT NULL OR due <= created_at)
