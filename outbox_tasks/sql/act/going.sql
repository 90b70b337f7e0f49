-- The acts that go on in the background, the oldest first. size: how many.
SELECT
  \ir ../audit/parts/shown.sql
  ,
  \ir parts/going.sql
FROM :schema.outbox_audit b JOIN :schema.outbox_acts a ON a.act = b.seq ORDER BY a.act LIMIT :size::integer
