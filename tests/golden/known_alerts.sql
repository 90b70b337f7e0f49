SELECT outbox_alerts.name, outbox_alerts.kind, outbox_alerts.destination, outbox_alerts.first_at, outbox_alerts.last_at, outbox_alerts.told_at, outbox_alerts.over_at, outbox_alerts.count, outbox_alerts.told, outbox_alerts.facts, outbox_alerts.untold, outbox_alerts.post_at
FROM outbox_alerts
ORDER BY outbox_alerts.over_at IS NOT NULL, outbox_alerts.last_at DESC
LIMIT %(size)s::INTEGER;
