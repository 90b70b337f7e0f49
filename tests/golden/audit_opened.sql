INSERT INTO outbox_audit (who, why, action, target, count, facts)
VALUES (%(person)s::VARCHAR, %(reason)s::VARCHAR, %(action)s::VARCHAR, %(target)s::VARCHAR, %(count)s::BIGINT, %(facts)s::JSONB)
RETURNING outbox_audit.seq;
-- count = 0
