-- Writes messages whose ids the application chose. One that is there already, on whatever day, is not written again.
--
-- row: JSON rows as for publish.sql. Fails with SQLSTATE 23505 if an id belongs to a message with other
-- content. When it is to be delivered is not part of what a message says.
SELECT :schema.outbox_publish(
  r.event_type, coalesce(convert_to(r.text, 'UTF8'), decode(r.data, 'base64')), r.key, r.destination,
  coalesce(r.headers, '{}'), coalesce(r.deliver_at, clock_timestamp() + r.delay * interval '1 second'), r.id,
  r.content_type, r.aggregate_type, r.aggregate_id, coalesce(r.priority, 'normal'), coalesce(r.latest, false))
FROM json_to_recordset(:row::json) AS r(
  id uuid, event_type text, aggregate_type text, aggregate_id text, destination text, key text, text text, data text,
  content_type text, headers jsonb, deliver_at timestamptz, delay float, priority text, latest boolean)
