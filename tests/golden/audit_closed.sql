UPDATE outbox_audit
SET facts=%(found)s::JSONB
WHERE outbox_audit.seq = %(entry)s::BIGINT
RETURNING outbox_audit.seq;
