UPDATE outbox_audit
SET facts=(outbox_audit.facts || %(found)s::JSONB),
  closed_at=clock_timestamp()
WHERE outbox_audit.seq = %(entry)s::BIGINT
RETURNING outbox_audit.seq;
