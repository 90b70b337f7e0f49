DELETE FROM outbox_alerts
WHERE outbox_alerts.over_at < now() - %(keep)s * interval '1 second';
