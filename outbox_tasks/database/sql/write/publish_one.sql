-- Writes one message, as publish.sql does. PostgreSQL takes half the time: it reads no JSON, and joins nothing.
--
-- Any of them may be null but the first five. headers: JSON. deliver_at: ISO 8601. delay: seconds.
SELECT :schema.outbox_write_one(
  :id::text::uuid, :event_type::text, :destination::text, :payload::bytea, :content_type::text, :headers::text::jsonb,
  :key::text, :aggregate_type::text, :aggregate_id::text,
  (CASE :priority::text WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END)::smallint, coalesce(:latest::boolean, false),
  :deliver_at::text::timestamptz, :delay::float)
