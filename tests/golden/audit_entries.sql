SELECT outbox_audit.seq, outbox_audit.at, outbox_audit.who, outbox_audit.why, outbox_audit.action, outbox_audit.target, outbox_audit.count, ((CASE WHEN (jsonb_typeof(outbox_audit.facts) = 'object') THEN outbox_audit.facts ELSE '{}'::jsonb END - CAST(%(param_1)s::VARCHAR AS TEXT)) - CAST(%(param_2)s::VARCHAR AS TEXT)) - CAST(%(param_3)s::VARCHAR AS TEXT) AS facts
FROM outbox_audit
WHERE outbox_audit.seq < coalesce(%(before)s::BIGINT, 9223372036854775807)
ORDER BY outbox_audit.seq DESC
LIMIT %(size)s::INTEGER;
-- param_1 = 'former'
-- param_2 = 'changed'
-- param_3 = 'form'
