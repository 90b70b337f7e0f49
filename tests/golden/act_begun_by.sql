SELECT outbox_audit.seq AS entry, outbox_audit.facts ->> CAST(%(param_1)s::VARCHAR AS TEXT) AS form
FROM outbox_audit
WHERE outbox_audit.once = %(token)s::UUID;
-- param_1 = 'form'
