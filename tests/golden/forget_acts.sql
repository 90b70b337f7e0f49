DELETE FROM outbox_audit
WHERE outbox_audit.at < now() - %(keep)s * interval '1 second';
