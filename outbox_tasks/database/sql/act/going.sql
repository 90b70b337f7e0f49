-- The acts that are under way, the oldest first. size: how many.
SELECT b.seq, b.at, b.who, b.why, b.action, b.target, b.count,
  \ir parts/going.sql
FROM :schema.outbox_audit b JOIN :schema.outbox_acts a ON a.act = b.seq ORDER BY a.act LIMIT :size::integer
