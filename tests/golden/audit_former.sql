SELECT outbox_audit.facts ->> %(facts_1)s::TEXT AS payload
FROM outbox_audit
WHERE outbox_audit.seq = %(entry)s::BIGINT
  AND (outbox_audit.facts ->> %(facts_1)s::TEXT) IS NOT NULL;
-- facts_1 = 'former'
