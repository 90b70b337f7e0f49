SELECT outbox_audit.seq AS entry
FROM outbox_audit
WHERE outbox_audit.once = %(token)s::UUID;
